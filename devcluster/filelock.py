"""A lock between processes that the kernel releases when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.progress import Progress


@contextmanager
def exclusive(path: Path, busy: str, progress: Progress) -> Iterator[None]:
    """Holds the lock at `path` for the length of the block; says `busy` once when it has to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        if not _try_lock(handle.fileno()):
            progress(busy)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def hold(path: Path) -> int | None:
    """Takes the lock at `path` without waiting and keeps it until the returned descriptor is closed.

    Returns:
        The descriptor, or None when another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if _try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
