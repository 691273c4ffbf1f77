"""The product's rank with one thing taken out: its hang detector does not pause. For `test_idle`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from lockstep_worker.health.hang import HangDetector
from lockstep_worker.rank.__main__ import main


@contextlib.contextmanager
def no_pause(self: HangDetector, reason: str, *, beat: bool = False) -> Iterator[None]:
    yield


if __name__ == "__main__":
    HangDetector.pause = no_pause  # type: ignore[method-assign]
    sys.exit(main())
