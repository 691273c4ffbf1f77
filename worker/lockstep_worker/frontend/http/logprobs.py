"""Logprobs as the OpenAI API shows them: ids become text and bytes. Knows no HTTP and no JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep_worker.frontend.flight.generation import Choice, TokenLogprobs
from lockstep_worker.frontend.schema.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

LEAST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class LogprobsWriter:
    """Writes what came since the last call; None where the request does not ask.

    Args:
        piece: the bytes of an id.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece

    def for_chat(self, choice: Choice) -> ChatLogprobs | None:
        """Write them for a message."""
        if choice.params.logprobs < 0:
            return None
        return ChatLogprobs(content=[self._entry(one) for one in choice.take_logprobs()])

    def for_completion(self, choice: Choice) -> CompletionLogprobs | None:
        """Write them for a text; each place's best tokens hold the drawn one too."""
        if choice.params.logprobs < 0:
            return None
        entries = choice.take_logprobs()
        return CompletionLogprobs(
            tokens=[_name(self._piece(one.token)) for one in entries],
            token_logprobs=[max(one.logprob, LEAST) for one in entries],
            top_logprobs=[self._top(one) for one in entries],
            text_offset=[one.offset for one in entries],
        )

    def _entry(self, one: TokenLogprobs) -> TokenLogprob:
        best = [TopLogprob(**self._fields(token, value)) for token, value in one.top]
        return TokenLogprob(**self._fields(one.token, one.logprob), top_logprobs=best)

    def _fields(self, token: int, value: float) -> dict[str, Any]:
        piece = self._piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": max(value, LEAST), "bytes": list(piece)}

    def _top(self, one: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, value in (*one.top, (one.token, one.logprob)):
            top.setdefault(_name(self._piece(token)), max(value, LEAST))  # of equal names the best stays
        return top


def _name(piece: bytes) -> str:
    """Name a token by its text, or by its bytes where they are no text, so that different tokens stay apart."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
