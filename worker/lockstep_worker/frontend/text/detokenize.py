"""Token ids become text, one id at a time, so that the pieces joined are the text of all ids.

A piece never ends inside a character. Text of the prompt never appears; where the prompt ends inside a character, the
character belongs to the output if the output completes it. Special tokens give no text. Knows no HTTP and no stop
strings.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
_MAX_CHARACTER_BYTES = 4
_PROMPT_WINDOW = 6
_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_MAX_HELD_IDS = 24
"""Ids held back for an unfinished character; only invalid output makes more, and its cost must stay bounded."""


class Detokenizer(Protocol):
    """One sequence's text."""

    def push(self, token: int) -> str:
        """Take the next id and return the text that is now certain."""

    def flush(self) -> str:
        """Return what was held back; an unfinished character becomes U+FFFD."""


class ByteDetokenizer:
    """For byte-level vocabularies: every id stands for fixed bytes, so the text is an incremental UTF-8 decoding.

    Args:
        pieces: the bytes of each id; ids beyond its end and special tokens have none.
        prompt: the ids before the output.
    """

    __slots__ = ("_decode", "_pieces", "_prompt_is_cut")

    def __init__(self, pieces: Sequence[bytes], prompt: Sequence[int]) -> None:
        self._pieces = pieces
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decode = decoder.decode
        tail = [token for token in prompt[-_MAX_CHARACTER_BYTES:] if token < len(pieces)]
        decoder.decode(b"".join(pieces[token] for token in tail))
        self._prompt_is_cut = bool(decoder.getstate()[0])

    def push(self, token: int) -> str:
        """See `Detokenizer`."""
        piece = self._pieces[token] if token < len(self._pieces) else b""
        text = self._decode(piece)
        return self._drop_prompt(text) if self._prompt_is_cut and text else text

    def flush(self) -> str:
        """See `Detokenizer`."""
        text = self._decode(b"", final=True)
        return self._drop_prompt(text) if self._prompt_is_cut and text else text

    def _drop_prompt(self, text: str) -> str:
        self._prompt_is_cut = False
        return text.removeprefix(REPLACEMENT)


class WindowDetokenizer:
    """For all other vocabularies, where an id's text depends on its neighbours: decodes a short window twice per id.

    Args:
        decode: ids to text, special tokens left out.
        prompt: the ids before the output.
    """

    __slots__ = ("_decode", "_known", "_prompt_is_cut", "_read", "_window")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._window = _cut_between_characters(decode, prompt)
        self._read = len(self._window)
        text = decode(self._window)
        self._known = text.rstrip(REPLACEMENT)
        self._prompt_is_cut = self._known != text

    def push(self, token: int) -> str:
        """See `Detokenizer`."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and len(self._window) - self._read < _MAX_HELD_IDS:
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._emit(self._decode(self._window))

    def _emit(self, text: str) -> str:
        new = text[len(self._known) :]
        if not new:
            if len(self._window) - self._read > _MAX_HELD_IDS:
                del self._window[self._read :]  # special tokens, one after another: they have no text
            return ""
        self._window = self._window[self._read :]
        self._read = len(self._window)
        self._known = self._decode(self._window)
        if self._prompt_is_cut:
            self._prompt_is_cut = False
            new = new.lstrip(REPLACEMENT)
        return new


def _cut_between_characters(decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> list[int]:
    """Return the prompt's last ids, starting at a character: a window that starts inside one decodes wrongly."""
    for extra in range(_MAX_CHARACTER_BYTES):
        window = list(prompt[-_PROMPT_WINDOW - extra :])
        if not decode(window).startswith(REPLACEMENT):
            return window
    return list(prompt[-_PROMPT_WINDOW:])


def build_detokenizers(tokenizer: Tokenizer) -> Callable[[Sequence[int]], Detokenizer]:
    """Choose the way for this vocabulary; the result makes a detokenizer from a prompt's ids."""
    decoder = json.loads(tokenizer.to_str())["decoder"]
    if decoder and decoder["type"] == "ByteLevel":
        pieces = read_pieces(tokenizer)
        return lambda prompt: ByteDetokenizer(pieces, prompt)
    return lambda prompt: WindowDetokenizer(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), prompt)


def build_pieces(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """Return what gives the bytes of any one id, special tokens by their names; an id without a token has none."""
    decoder = json.loads(tokenizer.to_str())["decoder"]
    pieces = read_pieces(tokenizer) if decoder and decoder["type"] == "ByteLevel" else []

    def piece(token: int) -> bytes:
        known = pieces[token] if token < len(pieces) else b""
        return known or _piece_by_name(tokenizer.id_to_token(token) or "")

    return piece


def _piece_by_name(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes.fromhex(byte[1]) if byte else name.replace(_SPACE, " ").encode()


def read_pieces(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each id of a byte-level vocabulary; special tokens and gaps have none."""
    pieces = [b""] * (max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    byte_of = _bytes_by_character()
    for text, token in tokenizer.get_vocab(with_added_tokens=True).items():
        if token not in special:
            known = all(character in byte_of for character in text)
            pieces[token] = bytes(byte_of[character] for character in text) if known else text.encode()
    return pieces


def _bytes_by_character() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + rank): byte for rank, byte in enumerate(others)}
