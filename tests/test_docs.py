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
DEVELOPMENT = (ROOT / "docs" / "development.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


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


# --- the way of a deployment and of a request, hop by hop -----------------------------------------------------------
HOPS = re.findall(r"^(\d+)\. (.*)$", README, re.MULTILINE)
TREES = (ROOT, ROOT / "operator" / "lockstep_operator", ROOT / "worker" / "lockstep_worker")


def test_the_readmes_hops_are_numbered_one_after_another() -> None:
    assert [int(number) for number, _ in HOPS] == list(range(1, len(HOPS) + 1))
    assert len(HOPS) > 10


@pytest.mark.parametrize("hop", [text for _, text in HOPS], ids=[number for number, _ in HOPS])
def test_each_hop_names_a_file_and_what_happens_in_it(hop: str) -> None:
    steps = re.findall(r"`([\w/]+\.py)` ((?:`\w+\(\)`(?: and )?)+)", hop)
    assert steps, "a hop names its file and function"
    for name, functions in steps:
        path = next((tree / name for tree in TREES if (tree / name).is_file()), None)
        assert path is not None, name
        for function in re.findall(r"`(\w+)\(\)`", functions):
            assert re.search(rf"(def|class) {function}\b", path.read_text()), f"{name} has no {function}"


def test_the_readmes_tree_names_every_room() -> None:
    """Who reads the folder list sees all of it, and nothing that is not there."""
    [tree] = [block for block in README.split("```")[1::2] if "\noperator/lockstep_operator/" in block]
    for package in ("operator/lockstep_operator", "worker/lockstep_worker"):
        part = tree.split(f"{package}/", 1)[1].split("\nworker/", 1)[0].split("\ncharts/", 1)[0]
        named = {name.split("/")[0] for name in re.findall(r"([a-z]+(?:/[a-z]+)?)/(?=\s)", part)}
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert rooms <= named, f"{package}: {rooms - named} are not in the README's tree"


# --- docs/development.md ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", blocks("sh", DEVELOPMENT), ids=lambda block: block.split()[-1][-40:])
def test_the_commands_of_the_development_page_work(block: str) -> None:
    for command in filter(None, block.splitlines()):
        words = command.split(" > ")[0]  # what would overwrite a generated file is only printed
        done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def test_the_development_page_names_only_make_targets_and_files_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z-]+)", DEVELOPMENT)) <= targets
    for name in re.findall(r"`((?:tests|operator|worker|devcluster|charts|examples)/[\w/.]+?\.\w+)`", DEVELOPMENT):
        assert (ROOT / name).exists() or (ROOT / name).with_suffix(".py").exists(), name
