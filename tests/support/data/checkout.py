"""The checkout's own files, as git tells them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def list_written(*patterns: str) -> list[Path]:
    """List the files that git has or would take in, whatever a developer's own settings ignore.

    Without a checkout, as in an unpacked archive, the test is skipped; a git that fails in one is a failure.

    Args:
        patterns: such as `*.py`; none means all files.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-c", f"core.excludesFile={os.devnull}", "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*command, "--exclude-standard", *patterns], cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
