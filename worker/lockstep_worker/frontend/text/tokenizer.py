"""The model's tokenizer, loaded without torch: text to ids, ids to text, conversations to text.

It works on batches of one: they release the interpreter's lock, which single calls hold to their end, so that large
work in a thread holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from lockstep_worker.errors import ConfigError
from lockstep_worker.frontend.text.chat import ChatTemplate, Conversation
from lockstep_worker.frontend.text.detokenize import Detokenizer, build_detokenizers, build_pieces

T = TypeVar("T")
_LARGE = 4096
"""More characters or ids are worked on in a thread."""


class TextTokenizer:
    """Everything that depends on the vocabulary.

    Args:
        backend: the tokenizer itself.
        chat: turns a conversation into text.
    """

    def __init__(self, backend: Tokenizer, chat: ChatTemplate) -> None:
        self._backend = backend
        self.chat = chat
        self._detokenizers = build_detokenizers(backend)
        self.piece = build_pieces(backend)

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Return the ids of each text."""
        return await _aside(sum(map(len, texts)), lambda: [self._encode(text, add_special_tokens) for text in texts])

    async def encode_chat(self, conversation: Conversation, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a conversation.

        Raises:
            RequestError: the chat template refuses it.
        """
        return await _aside(conversation.size, lambda: self._encode(self.chat.render(conversation), add_special_tokens))

    async def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        texts: list[str] = await _aside(len(ids), lambda: self._backend.decode_batch([ids], skip_special_tokens=False))
        return texts[0]

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Return a fresh detokenizer for the output that follows `prompt`."""
        return self._detokenizers(prompt)


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do large work in a thread, so that streams go on."""
    return await asyncio.to_thread(work) if size > _LARGE else work()


def load_tokenizer(model_path: str) -> TextTokenizer:
    """Load the tokenizer of the model in a directory.

    Raises:
        ConfigError: the directory holds none that can be used.
    """
    directory = Path(model_path)
    try:
        return TextTokenizer(_load_backend(directory), ChatTemplate.load(directory))
    except Exception as error:  # the libraries' errors have no common type
        raise ConfigError([f"model: no tokenizer can be loaded from {model_path}: {error}"]) from error


def _load_backend(directory: Path) -> Tokenizer:
    file = directory / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    from transformers import AutoTokenizer  # noqa: PLC0415 (it brings torch, seconds and hundreds of megabytes)

    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    names = sorted(set(tokenizer.vocab_files_names.values()))
    if not any((directory / name).is_file() for name in names):  # transformers makes up an empty one
        raise ValueError(f"it has none of {', '.join(names)}")
    if not tokenizer.is_fast:
        raise ValueError("it has no fast tokenizer")
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend
