"""The hang detector: one deadline, one watcher thread that only calls `check()`.

The executor loop calls `checkpoint()` where it made progress and wraps each wait that may last in `pause(reason)`. This
module must not know MPI, the loop, or what ends a group: it calls `on_hang` once for each lapse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """One lapse: what stayed away, and for how long."""

    reason: str
    silent_s: float


@dataclasses.dataclass(slots=True, eq=False)
class _Pause:
    reason: str
    beat: bool


class HangDetector:
    """Watches that the loop makes progress, or, while it is parked with beats, that the group still beats.

    Disarmed until the first `checkpoint()`. All methods may be called from any thread; `checkpoint()` and `beat()`
    take no lock.

    Args:
        timeout_s: seconds without progress that count as a hang; 0 turns the detector off.
        on_hang: called from the watcher thread, once for each lapse; it may raise.
        clock: monotonic seconds.
    """

    def __init__(
        self, timeout_s: float, *, on_hang: Callable[[Hang], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout_s = timeout_s
        self.trips = 0
        self._on_hang = on_hang
        self._clock = clock
        self._progress: float | None = None
        self._beat = clock()
        self._lapse: float | None = None
        self._pauses: list[_Pause] = []
        self._paused_s: dict[str, float] = {}
        self._counted_until = clock()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None

    # --- what the loop calls ----------------------------------------------------------------------------------------
    def checkpoint(self) -> None:
        """Say that the loop made progress; the first call arms the detector."""
        self._progress = self._clock()

    def beat(self) -> None:
        """Say that the group still exchanges while it is parked. This is no progress."""
        self._beat = self._clock()

    @contextlib.contextmanager
    def pause(self, reason: str, *, beat: bool = False) -> Iterator[None]:
        """Do not count a wait as a hang; pauses nest, and the innermost one is what counts.

        Args:
            reason: names the wait in `paused_seconds()`.
            beat: the group beats during this wait; a beat that stays away longer than the timeout is a hang too.
        """
        pause = _Pause(reason, beat)
        with self._lock:
            self._count_pause()
            self._pauses.append(pause)
            self._beat = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._count_pause()
                self._pauses.remove(pause)
                self._beat = self._clock()
                if self._progress is not None:
                    self._progress = self._clock()

    # --- what the watcher calls -------------------------------------------------------------------------------------
    def check(self) -> Hang | None:
        """Look at the clock once; on a new lapse count it, call `on_hang` and return what was found."""
        with self._lock:
            hang = self._find()
            if hang is None:
                return None
            self.trips += 1
        log.error("hang detected: %s", hang.reason)
        try:
            self._on_hang(hang)
        except Exception:  # the watcher outlives whatever the callback does
            log.exception("the hang callback failed")
        return hang

    def _find(self) -> Hang | None:
        pause = self._pauses[-1] if self._pauses else None
        since = self._progress if pause is None else self._beat if pause.beat else None
        if not self.armed or since is None or since == self._lapse:
            return None
        silent_s = self._clock() - since
        if silent_s <= self.timeout_s:
            return None
        self._lapse = since
        what = "no progress" if pause is None else f"no beat of the group while paused ({pause.reason})"
        return Hang(f"{what} for {silent_s:.1f} s (timeout {self.timeout_s:g} s)", silent_s)

    def start(self) -> None:
        """Start the watcher thread; a second call, or a timeout of 0, does nothing."""
        if self._watcher is None and self.timeout_s:
            self._watcher = threading.Thread(target=self._watch, name="hang-detector", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """End the watcher thread."""
        self._stopped.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=1)

    @property
    def check_period_s(self) -> float:
        """Seconds between two looks of the watcher: how much later than the timeout a hang may be noticed."""
        return min(1.0, self.timeout_s / 4)

    def _watch(self) -> None:
        while not self._stopped.wait(self.check_period_s):
            self.check()

    # --- what metrics and probes read -------------------------------------------------------------------------------
    @property
    def armed(self) -> bool:
        """Whether a lapse would be noticed: on, and past the first checkpoint."""
        return bool(self.timeout_s) and self._progress is not None

    @property
    def paused(self) -> str | None:
        """The innermost pause's reason, or None."""
        with self._lock:
            return self._pauses[-1].reason if self._pauses else None

    def seconds_since_progress(self) -> float | None:
        """Seconds since the last checkpoint or end of a pause; None before the first checkpoint."""
        progress = self._progress
        return None if progress is None else max(0.0, self._clock() - progress)

    def last_progress_timestamp(self) -> float:
        """Unix time of the last progress, in seconds; 0 before the first checkpoint."""
        since = self.seconds_since_progress()
        return 0.0 if since is None else time.time() - since

    def paused_seconds(self) -> dict[str, float]:
        """Seconds spent in each pause reason, the running pause included; nested time goes to the innermost."""
        with self._lock:
            self._count_pause()
            return dict(self._paused_s)

    def _count_pause(self) -> None:
        now = self._clock()
        if self._pauses:
            reason = self._pauses[-1].reason
            self._paused_s[reason] = self._paused_s.get(reason, 0.0) + now - self._counted_until
        self._counted_until = now
