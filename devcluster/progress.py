"""How long work tells a person that it goes on; decides nothing."""

import sys
import time
from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line of text for a person."""


def to_stderr(line: str) -> None:
    """Prints one line at once, so that it shows while a pipe is read."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Drops the line: for tests, whose report is the failure's own text."""


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Elapsed time in seconds."""
        return time.monotonic() - self._start


def minutes(seconds: float) -> str:
    """A duration as a person reads it, for example `3 min 05 s`."""
    whole = int(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
