"""A process that ends when its parent does, so that nothing orphaned holds a GPU or a port. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

PARENT_VARIABLE = "LOCKSTEP_PARENT_PID"
"""Set for a rank that the supervisor starts itself; under mpirun nobody can know the parent in advance."""
_PR_SET_PDEATHSIG = 1
_INIT = 1
_INIT_NAME = Path("/proc/1/comm")
_LAUNCHERS = {"mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "slurmstepd"}
"""What may rightly be the parent of a rank and process 1 of a container at once."""
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(sig: int = signal.SIGKILL, *, parent: int | None = None) -> None:
    """Ask the kernel for a signal when the parent ends, and send it at once if the parent ended before the asking.

    The kernel watches the parent's *thread* that started this process: start children from a thread that lives as
    long as they shall.

    Args:
        sig: the signal to get.
        parent: the parent's process id where the caller knows it. Otherwise `PARENT_VARIABLE` says it (and is removed,
            because it would be wrong for this process's own children). With neither, process 1 as the parent means
            that the real one ended, unless process 1 is itself a launcher of ranks.

    Raises:
        OSError: the kernel refused.
    """
    stated = os.environ.pop(PARENT_VARIABLE, None)
    expected = parent if parent is not None else int(stated) if stated else None
    ask_for_signal(sig)
    if is_orphan(os.getppid(), expected, init=_INIT_NAME.read_text(encoding="utf-8").strip()):
        os.kill(os.getpid(), sig)


def ask_for_signal(sig: int) -> None:
    """Have the kernel send a signal when the parent ends; a parent that ended before is the caller's to notice.

    Raises:
        OSError: the kernel refused.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(sig), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def is_orphan(actual: int, expected: int | None, *, init: str) -> bool:
    """Decide from the parent's process id, what it should be where that is known, and the name of process 1."""
    if expected is not None:
        return actual != expected
    return actual == _INIT and init not in _LAUNCHERS
