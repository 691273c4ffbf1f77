"""Documents that can be run are run, and generated ones are what their generator writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_worker.metrics import page

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_metrics_page_is_generated() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page.document()


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", README))
    assert "demo" in named
    assert named <= targets


def test_the_readme_names_only_paths_that_exist() -> None:
    linked = {target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target}
    assert {target for target in linked if not (ROOT / target).exists()} == set()


def test_the_readmes_resource_is_valid_and_becomes_what_it_says(tmp_path: Path) -> None:
    [resource] = blocks("yaml")
    path = tmp_path / "readme.yaml"
    path.write_text(resource)
    plan = subprocess.run([BIN / "lockstep-operator", "plan", "-f", path], capture_output=True, text=True, timeout=60)
    assert plan.returncode == 0, plan.stderr
    assert plan.stdout.count("kind: MPIJob") == 2
    assert "--tensor-parallel" in plan.stdout


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_a_page_links_only_to_what_exists(page: Path) -> None:
    linked = {target for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in target}
    assert {target for target in linked if not (page.parent / target).exists()} == set()
