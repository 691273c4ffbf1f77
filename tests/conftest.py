"""For all tests: where there is no GPU, Triton's kernels run in its interpreter, and GPU tests are skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HAS_GPU = Path("/dev/nvidiactl").exists()
"""Asked of the system: torch takes seconds to import, and most tests never do."""

if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel's module is imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
