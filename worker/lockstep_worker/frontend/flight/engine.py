"""The ranks as the frontend sees them: requests go in, tokens come back and find their choice.

Every sequence in flight stands in one dictionary by its handle and leaves it exactly once: ended, cut by a stop string,
refused, cancelled, or lost with the engine. Knows the link and the generations, and nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable

from lockstep_worker import contract
from lockstep_worker.frontend.flight.generation import Choice, Generation
from lockstep_worker.frontend.flight.link import Link
from lockstep_worker.frontend.schema.faults import ApiError
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.metrics.families import FrontendMetrics
from lockstep_worker.wire.messages import (
    Cancel,
    Drained,
    EngineDown,
    FinishCode,
    NewRequest,
    Outbound,
    Progress,
    Refused,
    Shutdown,
    Started,
    Tokens,
)

logger = logging.getLogger(__name__)


class Engine:
    """Opens generations, feeds them, and closes them.

    Args:
        settings: limits and addresses.
        metrics: what people see of it.
        on_down: called once with an exit code when the engine is lost.
        on_drained: called when all ranks have left their loop as they were asked to.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        metrics: FrontendMetrics,
        *,
        on_down: Callable[[int], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._on_down = on_down
        self._on_drained = on_drained
        self._handles = itertools.count(1)
        self._choices: dict[int, Choice] = {}
        self._open: dict[Generation, asyncio.TimerHandle | None] = {}
        """Each request with the timer of its deadline, if it has one."""
        self._drained: set[int] = set()
        self._progress_s: float | None = None
        self._lost: ApiError | None = None
        self._link = Link(
            settings,
            on_messages=self.receive,
            on_broken=lambda reason: self.lose(reason, contract.EXIT_FRONTEND),
        )

    @property
    def num_open(self) -> int:
        """Requests accepted and not answered to the end."""
        return len(self._open)

    def unavailable(self) -> ApiError | None:
        """Say why no request can be served now, or None."""
        if self._lost is not None:
            return self._lost
        if self._progress_s is None:
            return ApiError(503, "The engine is still starting.", code="engine_starting")
        return None

    def stalled(self) -> ApiError | None:
        """Say why the engine does not count as ready, or None: it is unavailable, or shows no progress."""
        if (reason := self.unavailable()) is not None or self._progress_s is None:
            return reason
        age_s = time.monotonic() - self._progress_s
        if age_s <= self._settings.ready_timeout_s:
            return None
        return ApiError(503, f"The engine has shown no progress for {age_s:.1f} seconds.", code="engine_stalled")

    def open(self, generation: Generation, timeout_s: float | None = None) -> None:
        """Accept a request and send it to rank 0. `close` must follow, whatever happens.

        Args:
            generation: the request.
            timeout_s: what its client gives it from its arrival; the server's own limit holds as well.

        Raises:
            ApiError: 503 without an engine, 429 when too many sequences are in flight.
        """
        if (reason := self.unavailable()) is not None:
            raise reason
        limit = self._settings.max_queued
        if len(self._choices) + generation.num_running > limit:
            raise ApiError(429, f"{limit} sequences are in flight, which is the limit; try again later.")
        self._open[generation] = self._start_deadline(generation, timeout_s)
        self._metrics.requests_in_flight.inc()
        self._metrics.prompt_tokens_total.inc(generation.prompt_tokens)
        for choice in generation.choices:
            if choice.finish_reason is None:
                choice.handle = next(self._handles)
                self._choices[choice.handle] = choice
                self._link.send(NewRequest(choice.handle, choice.prompt, choice.params, generation.priority))

    def end(self, generation: Generation, outcome: str, error: ApiError | None) -> None:
        """End a request early: its sequences are cancelled and its responder wakes up."""
        self._release(generation)
        generation.fail(outcome, error)

    def close(self, generation: Generation) -> None:
        """The responder is done: free what is left and count the request, once."""
        if generation not in self._open:
            return
        timer = self._open.pop(generation)
        if timer is not None:
            timer.cancel()
        self._release(generation)
        metrics = self._metrics
        metrics.requests_in_flight.dec()
        metrics.requests_total[generation.outcome or "error",].inc()
        metrics.request_seconds.observe(time.monotonic() - generation.arrived_s)

    def end_all(self, outcome: str, error: ApiError) -> None:
        """End every request that is open."""
        for generation in list(self._open):
            self.end(generation, outcome, error)

    def lose(self, reason: str, exit_code: int) -> None:
        """The engine is gone: nothing more can be served by this process."""
        if self._lost is not None:
            return
        logger.error("the engine is down: %s", reason)
        self._lost = ApiError(503, f"The engine is down: {reason}", code="engine_down")
        self.end_all("error", self._lost)
        self._on_down(exit_code)

    def shut_down(self) -> None:
        """Ask the ranks to leave their loop."""
        self._link.send(Shutdown())

    def disconnect(self) -> None:
        """Close the link."""
        self._link.close()

    def receive(self, messages: list[Outbound]) -> None:
        """Take what the ranks sent, then wake each responder that has something to do, once."""
        changed: set[Generation] = set()
        for message in messages:
            match message:
                case Tokens():
                    self._take_tokens(message, changed)
                case Started(handles, cached_tokens):
                    self._take_started(handles, cached_tokens)
                case Progress():
                    self._take_progress(message)
                case Refused(handle, text, field):
                    self._take_refusal(handle, ApiError(400, text, field))
                case EngineDown(rank, reason, exit_code):
                    logger.error("rank %d says that the group ends", rank)
                    self.lose(reason, exit_code or contract.EXIT_FAILED)
                case Drained(rank):
                    self._drained.add(rank)
                    if len(self._drained) == self._settings.num_publishers:
                        self._on_drained()
        for generation in changed:
            generation.notify()

    def _take_tokens(self, message: Tokens, changed: set[Generation]) -> None:
        now_s = time.monotonic()
        known = self._choices
        num_tokens = 0
        logprobs = {} if message.logprobs is None else message.logprobs.unpack()
        for place, (handle, token, code) in enumerate(zip(*message.unpack(), strict=True)):
            choice = known.get(handle)
            if choice is None:  # cut by a stop string, or its client is gone
                continue
            if code == FinishCode.CANCELLED or token < 0:
                self.end(choice.generation, "cancelled", ApiError(503, "The engine cancelled the request."))
                continue
            num_tokens += 1
            choice.push(token, code, logprobs.get(place))
            self._time_token(choice, now_s)
            if choice.finish_reason is not None:
                self._retire(choice, is_running=not code)
            if choice.has_text and choice.generation.is_streamed:
                changed.add(choice.generation)
        self._metrics.generated_tokens_total.inc(num_tokens)

    def _take_started(self, handles: list[int], cached_tokens: list[int]) -> None:
        for handle, count in zip(handles, cached_tokens, strict=True):
            if (choice := self._choices.get(handle)) is not None:
                choice.cached_tokens = count
                self._metrics.cached_prompt_tokens_total.inc(count if choice.is_first else 0)

    def _retire(self, choice: Choice, *, is_running: bool) -> None:
        """A choice has ended; one that a stop string ended is still running over there."""
        del self._choices[choice.handle]
        if is_running:
            self._link.send(Cancel(choice.handle))
        generation = choice.generation
        generation.num_running -= 1
        if not generation.num_running:
            generation.finish()
        elif generation.is_streamed:
            generation.notify()

    def _time_token(self, choice: Choice, now_s: float) -> None:
        generation = choice.generation
        if choice.num_tokens > 1:
            self._metrics.inter_token_seconds.observe(now_s - choice.last_token_s)
        elif not generation.has_tokens:
            generation.has_tokens = True
            self._metrics.time_to_first_token_seconds.observe(now_s - generation.arrived_s)
        choice.last_token_s = now_s

    def _start_deadline(self, generation: Generation, timeout_s: float | None) -> asyncio.TimerHandle | None:
        """Time decides here only: what the ranks see of a deadline is a cancel."""
        limits = [limit for limit in (timeout_s, self._settings.request_timeout_s) if limit]
        if not limits or not generation.num_running:
            return None
        error = ApiError(504, f"The request did not end within {min(limits):g} seconds.", code="request_timeout")
        loop = asyncio.get_running_loop()
        left_s = generation.arrived_s + min(limits) - time.monotonic()
        return loop.call_later(left_s, self.end, generation, "timeout", error)

    def _take_progress(self, progress: Progress) -> None:
        if self._progress_s is None:
            logger.info("the engine is ready")
            self._metrics.show_cache(
                block_size=self._settings.block_size,
                num_blocks=progress.kv_blocks_total,
                prefix_cache=self._settings.prefix_cache,
            )
        self._progress_s = time.monotonic()
        self._metrics.gateway_running.set(progress.running)
        self._metrics.gateway_waiting.set(progress.waiting)
        self._metrics.gateway_kv_usage.set(progress.kv_blocks_used / max(progress.kv_blocks_total, 1))

    def _take_refusal(self, handle: int, error: ApiError) -> None:
        choice = self._choices.pop(handle, None)
        if choice is not None:
            self.end(choice.generation, "refused", error)

    def _release(self, generation: Generation) -> None:
        for choice in generation.choices:
            if self._choices.pop(choice.handle, None) is not None and self._lost is None:
                self._link.send(Cancel(choice.handle))
