"""The shape of the repository: what a newcomer may rely on, and what would break quietly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.data.checkout import ROOT, list_written

LIMIT = 300
GENERATED = {
    "docs/crd.md",
    "docs/metrics.md",
    "charts/lockstep/files/crd-servingdeployments.yaml",
    "models/recall/tokenizer.json",
}
WRITTEN_BY_HAND = {".py", ".md", ".yaml", ".yml", ".tpl", ".toml", ".sh", ".txt", ""}


def test_no_file_is_longer_than_the_limit() -> None:
    too_long = {
        str(path.relative_to(ROOT)): count
        for path in list_written()
        if path.suffix in WRITTEN_BY_HAND and str(path.relative_to(ROOT)) not in GENERATED
        if (count := len(path.read_text().splitlines())) > LIMIT
    }
    assert too_long == {}


def test_the_folder_called_operator_does_not_hide_the_standard_library() -> None:
    subprocess.run([sys.executable, "-c", "import collections, operator; operator.itemgetter"], cwd=ROOT, check=True)
    for folder in ("operator", "worker", "tests", "tests/operator", "tests/worker", "tests/mpi", "tests/charts"):
        assert not (ROOT / folder / "__init__.py").exists(), folder


def test_the_layers_hold() -> None:
    lint = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert lint.returncode == 0, lint.stdout


def test_what_decides_asks_no_clock() -> None:
    """The contracts forbid modules; `datetime` is needed for times that are handed in."""
    rooms = [f"operator/lockstep_operator/{room}" for room in ("children", "groups", "plan", "status")]
    asks = re.compile(r"\.(now|utcnow|today)\(|\bnow_micro\(")
    files = [path for room in (*rooms, "devcluster/agent/decisions") for path in (ROOT / room).glob("*.py")]
    assert len(files) > len(rooms)
    assert [str(path.relative_to(ROOT)) for path in files if asks.search(path.read_text())] == []


def test_nothing_names_a_machine_or_an_index() -> None:
    """Neither a path of a developer's machine nor the address of a package index belongs in the project."""
    forbidden = re.compile(
        "|".join(("/wo" + "rk/", "/ro" + "ot/\\.py", "pypi\\.o" + "rg", "proxy\\.gol" + "ang", "deb\\.deb" + "ian"))
    )
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in list_written()
        if path.suffix in WRITTEN_BY_HAND | {".json", ".mod"}
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if forbidden.search(line)
    }
    assert found == set()
