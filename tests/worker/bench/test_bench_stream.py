"""The benchmark of the stream path runs, and every token that its engine sends arrives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "frontend_stream.py"


def test_every_token_of_every_stream_arrives() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--streams", "4", "--tokens", "50"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # the benchmark itself compares what arrived with what was sent
    assert (result["streams"], result["tokens_per_stream"]) == (4, 50)
    assert result["tokens_per_s"] > 0
