"""Every Python file of the project is linted, formatted and type-checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy.main import process_options

ROOT = Path(__file__).resolve().parents[1]
SWITCHED_OFF = re.compile(
    r"^# *(ruff: *noqa(?!:)|flake8: *noqa|mypy: *ignore-errors|fmt: *off|type: *ignore)", re.MULTILINE
)
"""A comment on a line of its own that lets a whole file go unseen; one that names a rule is none."""


@pytest.fixture(scope="module")
def written() -> set[str]:
    """All Python files that git has or would take in."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def test_ruff_looks_at_every_file(written: set[str]) -> None:
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--show-files", "."]
    shown = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {str(Path(path).relative_to(ROOT)) for path in shown if path.endswith(".py")} == written


def test_mypy_looks_at_every_file(written: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sources, options = process_options([])  # as `mypy` alone does: what to check stands in pyproject.toml
    assert {str(Path(str(source.path)).resolve().relative_to(ROOT)) for source in sources} == written
    silenced = [name for name, changes in options.per_module_options.items() if changes.get("ignore_errors")]
    assert (options.ignore_errors, silenced) == (False, [])


def test_no_file_switches_its_checks_off(written: set[str]) -> None:
    found = {name for name in written if SWITCHED_OFF.search((ROOT / name).read_text())}
    assert found == set()
