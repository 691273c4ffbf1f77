"""Keys that wait for a reconciliation: each at most once in the queue and never twice at work at the same time.

It belongs to one event loop; `add_from_thread` is for watchers in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from lockstep_operator.groups.state import Key


class WorkQueue:
    """A queue of deployments with delays.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._active: set[Key] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Queue a key; of several times the earliest counts. A key at work is taken up again when that is done."""
        due = self._clock() + after_s
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._changed.set()

    def add_from_thread(self, key: Key) -> None:
        """Queue a key from another thread; once the loop is closed nobody waits for it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.add, key)

    async def take(self) -> Key:
        """Wait for a key that is due, and take it; `done` gives it back."""
        while True:
            waiting = [(due, key) for key, due in self._due.items() if key not in self._active]
            now = self._clock()
            due, key = min(waiting, default=(float("inf"), ("", "")))
            if due <= now:
                del self._due[key]
                self._active.add(key)
                return key
            await self._wait(due - now)

    def done(self, key: Key) -> None:
        """Say that a key is no longer at work."""
        self._active.discard(key)
        self._changed.set()

    async def _wait(self, timeout_s: float) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), None if timeout_s == float("inf") else timeout_s)
        except TimeoutError:
            return
