"""`make demo CHECK=1`, as the README promises it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_the_demo_ends_with_zero_and_shows_answer_and_series() -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "devcluster", "--name", "demo-test", "demo", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "Q=0731 k=4217" in demo.stdout
    for series in (
        "lockstep_iteration_bubble_seconds_count",
        'lockstep_collectives_total{outcome="skipped"}',
        'lockstep_hang_detector_paused_seconds_total{reason="idle"}',
    ):
        value = re.search(re.escape(series) + r" = ([0-9.e+]+)", demo.stdout)
        assert value is not None and float(value[1]) > 0, demo.stdout
