"""Conversations become text by the model's own chat template.

The template comes with the model and is not trusted: it runs in transformers' sandbox. Its complaints are the client's
to read. Knows no ids and no HTTP.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from lockstep_worker.errors import RequestError

_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
RESERVED_ARGUMENTS = frozenset(
    {"messages", "conversations", "tools", "documents", "chat_template", "return_assistant_tokens_mask"}
    | {"add_generation_prompt", "continue_final_message"}
)
"""What a template gets by other ways than the client's own arguments."""
_MESSAGE_SIZE = 64


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template makes a text of."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    """Whether the text ends where the assistant begins to speak."""
    continue_final_message: bool = False
    """Whether the text ends within the last message, for the model to go on."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What else the template may use."""

    @property
    def size(self) -> int:
        """What it takes to render it, in characters or so; with arguments, which may hold anything, a lot."""
        if self.arguments:
            return sys.maxsize
        return sum(_MESSAGE_SIZE + len(message["content"]) for message in self.messages)


class ChatTemplate:
    """One model's template.

    Args:
        source: the template's text, or None where the model has none.
        tokens: texts that templates may use, such as `bos_token`.
    """

    def __init__(self, source: str | None, tokens: Mapping[str, str]) -> None:
        self._source = source
        self._tokens = tokens

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate:
        """Read the template and the special tokens from a model's directory."""
        config = _read_json(directory / "tokenizer_config.json")
        file = directory / "chat_template.jinja"
        source = file.read_text("utf-8") if file.is_file() else _embedded(config.get("chat_template"))
        tokens = _read_json(directory / "special_tokens_map.json") | config
        texts = {name: _text(value) for name, value in tokens.items() if name.endswith("_token")}
        return cls(source, {name: text for name, text in texts.items() if text is not None})

    def render(self, conversation: Conversation) -> str:
        """Return the conversation's text.

        Raises:
            RequestError: there is no template, or it refuses the conversation; the message is the template's own.
        """
        if self._source is None:
            raise RequestError("This model has no chat template; use /v1/completions.", "messages")
        try:
            rendered, _ = render_jinja_template(
                [conversation.messages],
                chat_template=self._source,
                add_generation_prompt=conversation.add_generation_prompt,
                continue_final_message=conversation.continue_final_message,
                **{**self._tokens, **conversation.arguments},
            )
            text: str = rendered[0]
            text.encode()  # what is not valid Unicode cannot be tokenized
        except _TEMPLATE_ERRORS as error:
            raise RequestError(f"The chat template refuses these messages: {error}", "messages") from error
        return text


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return content


def _embedded(value: object) -> str | None:
    """Return the template of `tokenizer_config.json`, which may be a list of named ones."""
    if isinstance(value, list):
        return next((str(entry["template"]) for entry in value if entry["name"] == "default"), None)
    return value if isinstance(value, str) else None


def _text(token: object) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
