"""How far a long load is, as lines in the log. Knows nothing of models or files; counts what it is told.

A line comes when a tenth more is done, but at most every `LEAST_S`, so that a fast load says next to nothing and a
checkpoint of hundreds of files no more than one of few. A slow load is not silent for longer than `MOST_S` either: when
no line comes for that long, nothing moves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

log = logging.getLogger(__name__)
LEAST_S = 5.0
MOST_S = 30.0
_SHARE = 0.1

Item = TypeVar("Item")


class Progress:
    """Counts one load up to its total; the start and the end are the caller's to tell.

    Args:
        what: what is loaded, the first word of each line.
        total: how much there is, in the unit of `add`.
        show: writes an amount with its unit.
        clock: seconds that only grow.
    """

    def __init__(
        self, what: str, total: int, show: Callable[[int], str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._total, self._show, self._clock = what, total, show, clock
        self._done = self._told = 0
        self._start = self._told_at = clock()

    def add(self, amount: int) -> None:
        """So much more is done; say so when it is time."""
        self._done += amount
        now = self._clock()
        silent_s = now - self._told_at
        is_much = self._done - self._told >= _SHARE * self._total
        if self._done >= self._total or silent_s < LEAST_S or not (is_much or silent_s >= MOST_S):
            return
        self._told, self._told_at = self._done, now
        log.info(
            "%s: %s of %s (%d %%) after %.0f s",
            self._what,
            self._show(self._done),
            self._show(self._total),
            100 * self._done // self._total,
            now - self._start,
        )

    def follow(self, items: Iterable[Item]) -> Iterator[Item]:
        """Pass items on and count each when the next one is asked for."""
        for item in items:
            yield item
            self.add(1)


def show_bytes(count: int) -> str:
    """Write a number of bytes in a unit that suits it: `140.1 GB`, `3.4 MB`."""
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.1f} kB"
