"""The loop's two ends without a link: requests come from a script, and tokens are counted where they would be sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from lockstep_worker.executor.publish import Publisher
from lockstep_worker.wire.messages import Inbound, NewRequest, Outbound, Shutdown, Tokens

_HANDLE_BYTES = 8


class CountingOutlet(Publisher):
    """Packs and encodes each message as it would travel, and counts the tokens instead of sending them."""

    def __init__(self) -> None:
        self._rank = 0
        self._encoder = msgspec.msgpack.Encoder()
        self.num_tokens = 0
        self.steps_s: list[float] = []
        """When each message with tokens was ready, on `time.perf_counter`."""

    def send(self, message: Outbound) -> None:
        """See `Publisher`."""
        self._encoder.encode(message)
        if isinstance(message, Tokens):
            self.steps_s.append(time.perf_counter())
            self.num_tokens += len(message.handles) // _HANDLE_BYTES

    def close(self, linger_s: float = 1.0) -> None:
        """See `Publisher`."""


class Scripted:
    """The loop's source: hands it the next round of a script whenever all tokens of the round before are out.

    Args:
        outlet: where the tokens come out.
        script: yields rounds of requests; it goes on when a round's last token is out.
        on_step: called in each step, once it has begun its run; whoever watches a few steps hooks in here.
    """

    def __init__(
        self, outlet: CountingOutlet, script: Iterator[list[NewRequest]], on_step: Callable[[], None] | None = None
    ) -> None:
        self._outlet = outlet
        self._script = script
        self._on_step = on_step
        self._expected = 0
        self._ended = False

    def wait(self, timeout_s: float) -> None:
        """See `Source`."""

    def take(self) -> list[Inbound]:
        """See `Source`."""
        if self._outlet.num_tokens < self._expected:
            if self._on_step is not None:
                self._on_step()
            return []
        if self._ended:
            return []
        items = next(self._script, None)
        if items is None:
            self._ended = True
            return [Shutdown()]
        self._expected = self._outlet.num_tokens + sum(item.params.max_tokens for item in items)
        return [*items]
