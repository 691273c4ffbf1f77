"""Every Python file of the project is linted, formatted and type-checked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mypy.main import process_options

from support.data.checkout import ROOT, list_written

RUFF: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
SWITCHED_OFF = re.compile(
    r"^# *(ruff: *noqa(?!:)|flake8: *noqa|mypy: *[a-z]|fmt: *off|type: *ignore)", re.MULTILINE | re.IGNORECASE
)
"""A comment on a line of its own that lets a whole file go unseen, or mypy see less of it; one that names a rule of
ruff is none.
"""
OTHER_SETTINGS = ("ruff.toml", ".ruff.toml", "mypy.ini", ".mypy.ini", "setup.cfg", "tox.ini")


@pytest.fixture(scope="module")
def written() -> set[str]:
    """All Python files that git has or would take in."""
    return {str(path.relative_to(ROOT)) for path in list_written("*.py")}


def test_ruff_looks_at_every_file(written: set[str], tmp_path: Path) -> None:
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--show-files", "."]
    env = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}  # ruff heeds a developer's ignore file
    shown = subprocess.run(ruff, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {str(Path(path).relative_to(ROOT)) for path in shown if path.endswith(".py")} == written


def test_mypy_looks_at_every_file(written: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sources, options = process_options([])  # as `mypy` alone does: what to check stands in pyproject.toml
    assert {str(Path(str(source.path)).resolve().relative_to(ROOT)) for source in sources} == written
    silencing = ("ignore_errors", "disable_error_code")
    silenced = [name for name, changes in options.per_module_options.items() if any(map(changes.get, silencing))]
    assert (options.ignore_errors, options.disable_error_code, silenced) == (False, [], [])


def test_no_file_switches_its_checks_off(written: set[str]) -> None:
    found = {name for name in written if SWITCHED_OFF.search((ROOT / name).read_text())}
    assert found == set()


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("# ruff: noqa", True),
        ("# mypy: ignore-errors", True),
        ('# mypy: disable-error-code="arg-type"', True),
        ("# mypy: allow-untyped-defs", True),
        ("# type: ignore", True),
        ("# fmt: off", True),
        ("# ruff: noqa: E501", False),
        ("x = f()  # type: ignore[arg-type]", False),
        ("# mypy and ruff look at it", False),
    ],
)
def test_what_switches_checks_off_is_noticed(line: str, is_found: bool) -> None:
    assert bool(SWITCHED_OFF.search(f'"""A module."""\n\n{line}\nimport os\n')) == is_found


def find_blanket(ignores: dict[str, list[str]]) -> dict[str, list[str]]:
    """Those that leave nothing, or none of the rules that find faults (F and B), of what is selected."""
    return {
        pattern: codes
        for pattern, codes in ignores.items()
        if "ALL" in codes or set(RUFF["lint"]["select"]) <= set(codes) or {"F", "B"} & set(codes)
    }


def test_no_folder_is_let_off_by_the_settings() -> None:
    lint = RUFF["lint"]
    assert find_blanket({"*": lint["ignore"], **lint["per-file-ignores"]}) == {}
    apart = {"exclude", "extend-exclude", "extend-per-file-ignores"} & {*lint, *RUFF.get("format", {})}
    assert (apart, "extend-exclude" in RUFF) == (set(), False)
    elsewhere = [str(path.relative_to(ROOT)) for path in list_written() if path.name in OTHER_SETTINGS]
    nested = [str(path.relative_to(ROOT)) for path in list_written("*/pyproject.toml")]
    assert elsewhere + nested == []


@pytest.mark.parametrize("codes", [["ALL"], RUFF["lint"]["select"], ["F"]], ids=["all", "each", "pyflakes"])
def test_a_blanket_is_noticed(codes: list[str]) -> None:
    assert find_blanket({"tests/**": codes}) == {"tests/**": codes}
