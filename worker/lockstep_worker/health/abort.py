"""How a rank ends the whole group: its last words, then the kill, without any collective and in bounded time.

Whatever is only useful (the report, telling the frontend) is bounded and must never stop the kill. The rank's failure
leaves as one line on standard error, `LOCKSTEP_FAILURE {json}`, which the supervisor picks out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

from lockstep_worker import contract
from lockstep_worker.health.bounded import run_bounded
from lockstep_worker.health.diagnose import diagnose

FAILURE_MARK = "LOCKSTEP_FAILURE "
CRASH_GRACE_S = 5.0
_STDERR = 2
_WRITE_BOUND_S = 1.0
_NOTIFY_BOUND_S = 0.3
_ABORT_BOUND_S = 3.0
_LAST_RESORT_S = 10.0
"""More than all bounds of `end_group` together, and than those of asking the peers before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a group ended, as the rank says it and the termination message repeats it."""

    reason: str
    exit_code: int
    rank: int | None
    message: str

    def to_json(self) -> str:
        """Write the object of `contract.TERMINATION_LOG`."""
        return json.dumps(
            {"reason": self.reason, "exitCode": self.exit_code, "rank": self.rank, "message": self.message}
        )

    @classmethod
    def from_line(cls, line: str) -> Failure | None:
        """Find a rank's failure in a line of its standard error; other output may surround it."""
        start = line.find(FAILURE_MARK)
        if start < 0:
            return None
        try:
            found, _ = json.JSONDecoder().raw_decode(line, start + len(FAILURE_MARK))
            return cls(found["reason"], found["exitCode"], found["rank"], found["message"])
        except (ValueError, KeyError, TypeError):
            return None


def end_group(
    exit_code: int,
    reason: str,
    *,
    rank: int | None,
    mpi_abort: Callable[[int], None] | None,
    notify: Callable[[str], None] | None,
    state: Callable[[], str] | None = None,
) -> NoReturn:
    """End every rank with an exit code, from any thread, whatever the others do.

    Args:
        exit_code: one of `contract.EXIT_*`.
        reason: one sentence for people; it becomes the termination message.
        rank: the rank to blame, None where nobody knows.
        mpi_abort: `MPI_Abort` of the world with an exit code, where MPI allows it from any thread.
        notify: tells the frontend why its streams end.
        state: describes the step, for the report.
    """
    arm_last_resort()
    _say_failure(exit_code, reason, rank)
    _write(diagnose(state) + "\n")
    if notify is not None:
        run_bounded(lambda: notify(reason), _NOTIFY_BOUND_S)
    _kill(exit_code, mpi_abort)


class CrashGuard:
    """Ends the group after a rank's loop raised, also when its clean-up never comes back.

    Call `arm(error)` before any clean-up and `end()` after it.

    Args:
        rank: this rank.
        mpi_abort: as in `end_group`.
        notify: as in `end_group`; it is called by `arm`, with the original error.
        grace_s: seconds that the clean-up may take.
    """

    def __init__(
        self,
        *,
        rank: int,
        mpi_abort: Callable[[int], None] | None,
        notify: Callable[[str], None] | None,
        grace_s: float = CRASH_GRACE_S,
    ) -> None:
        self._rank, self._mpi_abort, self._notify, self._grace_s = rank, mpi_abort, notify, grace_s

    def arm(self, error: BaseException, *, exit_code: int = contract.EXIT_RANK_CRASH) -> None:
        """Say why the rank failed, tell the frontend, and start the grace."""
        reason = f"rank {self._rank} failed: {type(error).__name__}: {error}"
        self._exit_code = exit_code
        timer = threading.Timer(self._grace_s, self.end)
        timer.daemon = True
        timer.start()
        _say_failure(exit_code, reason, self._rank)
        if self._notify is not None:
            notify = self._notify
            run_bounded(lambda: notify(reason), _NOTIFY_BOUND_S)

    def end(self) -> NoReturn:
        """End the group now: the clean-up is done, or the grace is over."""
        arm_last_resort()
        _kill(self._exit_code, self._mpi_abort)


def arm_last_resort() -> None:
    """Have the kernel end this process even if a C call keeps the interpreter's lock for ever.

    SIGALRM's default action needs neither Python nor another thread. A later call starts the time anew.
    """
    signal.setitimer(signal.ITIMER_REAL, _LAST_RESORT_S)


def _say_failure(exit_code: int, reason: str, rank: int | None) -> None:
    failure = Failure(contract.exit_reason(exit_code), exit_code, rank, reason)
    _write(FAILURE_MARK + failure.to_json() + "\n")


def _write(text: str) -> None:
    """Write to the real standard error; a reader that stopped reading must not stop us."""
    data = text.encode(errors="replace")
    run_bounded(lambda: os.write(_STDERR, data), _WRITE_BOUND_S)


def _kill(exit_code: int, mpi_abort: Callable[[int], None] | None) -> NoReturn:
    if mpi_abort is not None:
        run_bounded(lambda: mpi_abort(exit_code), _ABORT_BOUND_S)
    os._exit(exit_code)
