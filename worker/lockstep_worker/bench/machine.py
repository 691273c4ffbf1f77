"""On what a benchmark ran, and how a list of times is summed up."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np


def describe_machine() -> dict[str, Any]:
    """Describe the machine and what ran on it, for the record beside every result."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("lockstep", "numpy", "torch")},
    }


def summarize(seconds: list[float]) -> dict[str, float]:
    """Sum up times in microseconds; the minimum is what a quiet machine would show."""
    times = np.array(seconds) * 1e6
    low, median, high = np.percentile(times, [0, 50, 90])
    return {"median": round(float(median), 2), "p90": round(float(high), 2), "min": round(float(low), 2)}


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
