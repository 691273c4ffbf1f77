"""The state of one HTTP request while the ranks work on it: its sequences, their text, and how it ended.

A `Generation` has one `Choice` for each sequence. The engine pushes tokens in; one responder takes text out. Nothing
here knows JSON, HTTP or sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep_worker.frontend.schema.faults import ApiError
from lockstep_worker.frontend.text.detokenize import Detokenizer
from lockstep_worker.frontend.text.stops import StopMatcher
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import SamplingParams

_REASONS = {FinishCode.END_ID: "stop", FinishCode.STOP_WORDS: "stop", FinishCode.LENGTH: "length"}
_WITHOUT_TEXT = (FinishCode.END_ID, FinishCode.STOP_WORDS)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model thought of one token of an output."""

    token: int
    logprob: float
    top: list[tuple[int, float]]
    """The best ids with their logprobs, best first; the token itself need not be among them."""
    offset: int
    """Where in the output the token's text begins, in characters, stop strings not cut."""


class Choice:
    """One sequence.

    Args:
        index: its number among the request's choices.
        prompt: token ids.
        params: how its tokens are drawn; `max_tokens` 0 makes a choice that has ended already.
        detokenizer: fresh, for this prompt.
        stops: stop strings, maybe none.
        echo: what the output begins with; not searched for stop strings.
        is_first: whether it is the first one of its prompt, which counts once.
    """

    __slots__ = (
        "_detokenizer",
        "_logprobs",
        "_matcher",
        "_num_chars",
        "_text",
        "cached_tokens",
        "finish_reason",
        "generation",
        "handle",
        "index",
        "is_first",
        "last_token_s",
        "num_tokens",
        "params",
        "prompt",
    )

    def __init__(
        self,
        *,
        index: int,
        prompt: list[int],
        params: SamplingParams,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        echo: str = "",
        is_first: bool = True,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.params = params
        self.generation: Generation
        self.handle = 0
        self.is_first = is_first
        self.cached_tokens = 0
        self.num_tokens = 0
        self.last_token_s = 0.0
        self.finish_reason: str | None = None if params.max_tokens else "length"
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops) if stops else None
        self._text = [echo] if echo else []
        self._logprobs: list[TokenLogprobs] = []
        self._num_chars = 0

    def push(self, token: int, code: int, logprobs: tuple[float, list[int], list[float]] | None = None) -> None:
        """Take the next token; afterwards `finish_reason` says whether it was the last.

        `logprobs` are the token's own, the best ids and theirs, where the request asks for them.

        An id that ended the output is counted and gives no text. A stop string wins over the length that it ends with.
        """
        self.num_tokens += 1
        if logprobs is not None:
            drawn, ids, values = logprobs
            self._logprobs.append(TokenLogprobs(token, drawn, list(zip(ids, values, strict=True)), self._num_chars))
        text = "" if code in _WITHOUT_TEXT else self._detokenizer.push(token)
        if code:
            text += self._detokenizer.flush()
            self.finish_reason = _REASONS[FinishCode(code)]
        self._num_chars += len(text)
        if self._matcher is not None and self.num_tokens >= self.params.min_tokens:
            text = self._search(text, self._matcher)
        if text:
            self._text.append(text)

    def _search(self, text: str, matcher: StopMatcher) -> str:
        text, is_met = matcher.push(text)
        if is_met:
            self.finish_reason = "stop"
        elif self.finish_reason is not None:
            text += matcher.flush()
        return text

    @property
    def has_text(self) -> bool:
        """Whether there is text that was not taken."""
        return bool(self._text)

    def take_text(self) -> str:
        """Return the text that came since the last call."""
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        self._text.clear()
        return text

    def take_logprobs(self) -> list[TokenLogprobs]:
        """Return the logprobs of the tokens that came since the last call; those of tokens without text, too."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs


class Generation:
    """One HTTP request.

    Args:
        choices: its sequences, by index.
        prompt_tokens: tokens of all prompts, each prompt counted once.
        is_streamed: whether the responder wants to know of every text, or only of the end.
        arrived_s: on the engine's clock.
        priority: lower runs first.
    """

    def __init__(
        self, choices: list[Choice], *, prompt_tokens: int, is_streamed: bool, arrived_s: float, priority: int = 0
    ) -> None:
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self.is_streamed = is_streamed
        self.arrived_s = arrived_s
        self.priority = priority
        self.has_tokens = False
        self.outcome: str | None = None
        """Set once, when it is known how the request ended."""
        self.error: ApiError | None = None
        self.num_running = sum(choice.finish_reason is None for choice in choices)
        self._changed = asyncio.Event()
        for choice in choices:
            choice.generation = self
        if not self.num_running:
            self.finish()

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices, those without text included."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the ranks had in their cache; of equal prompts the first counts, as in `prompt_tokens`."""
        return sum(choice.cached_tokens for choice in self.choices if choice.is_first)

    def finish(self) -> None:
        """All choices have ended by themselves."""
        if self.outcome is None:
            self.outcome = "length" if any(choice.finish_reason == "length" for choice in self.choices) else "stop"
        self._changed.set()

    def fail(self, outcome: str, error: ApiError | None) -> None:
        """It ends early, with what the client is told; None when the client is gone."""
        if self.outcome is None:
            self.outcome = outcome
            self.error = error
        self._changed.set()

    def notify(self) -> None:
        """There is text to take."""
        self._changed.set()

    async def changed(self) -> None:
        """Wait for new text (streamed) or for the end."""
        await self._changed.wait()
        self._changed.clear()
