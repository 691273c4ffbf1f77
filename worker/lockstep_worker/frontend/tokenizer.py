"""The model's tokenizer, loaded without torch: text to ids, ids to text, conversations to text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from lockstep_worker.errors import ConfigError
from lockstep_worker.frontend.chat import ChatTemplate
from lockstep_worker.frontend.detokenize import Detokenizer, build_detokenizers, build_pieces


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

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text. It releases the interpreter lock, so long texts may run in a thread."""
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._backend.decode(ids, skip_special_tokens=False)

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Return a fresh detokenizer for the output that follows `prompt`."""
        return self._detokenizers(prompt)


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

    tokenizer = AutoTokenizer.from_pretrained(directory)
    if not tokenizer.is_fast:
        raise ValueError("it has no fast tokenizer")
    backend: Tokenizer = tokenizer.backend_tokenizer
    return backend
