"""On what a benchmark ran, and how a list of times is summed up."""

from __future__ import annotations

import os
import platform
import subprocess
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
        **{name: _version(name) for name in ("lockstep", "numpy", "torch")},
    }


def describe_device(kind: str) -> dict[str, Any]:
    """Name the device, how fast it runs right now, and the libraries that make its kernels.

    Args:
        kind: `cuda` for the current GPU; anything else has no clocks of its own.
    """
    libraries = {name: _version(name) for name in ("torch", "triton", "transformers")}
    if kind != "cuda":
        return {"name": _cpu_model(), "clocks": None, **libraries}
    fields = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        shown = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {"name": "a GPU that nvidia-smi does not show", "clocks": None, **libraries}
    name, driver, *clocks = (part.strip() for part in shown.split(","))
    names = ("sm_mhz", "memory_mhz", "celsius", "watts")
    return {"name": name, "driver": driver, "clocks": dict(zip(names, clocks, strict=True)), **libraries}


def summarize(seconds: list[float]) -> dict[str, float]:
    """Sum up times in microseconds; the minimum is what a quiet machine would show."""
    times = np.array(seconds) * 1e6
    low, median, high = np.percentile(times, [0, 50, 90])
    return {"median": round(float(median), 2), "p90": round(float(high), 2), "min": round(float(low), 2)}


def _version(name: str) -> str | None:
    """Look a library up; None where it runs from its sources or is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
