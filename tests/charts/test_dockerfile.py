"""The Dockerfile against the contract of image and pods. No container engine runs here; the file is read."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest

from lockstep_worker import contract

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("worker", "operator")


@dataclass
class Stage:
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for word, text in self.steps if word == instruction]


def read_stages() -> dict[str, Stage]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines():
        word, _, text = line.partition(" ")
        if word == "FROM":
            base, _, name = text.partition(" AS ")
            stages[name] = Stage(base)
        elif word:
            list(stages.values())[-1].steps.append((word, text))
    return stages


STAGES = read_stages()


def lineage(name: str) -> list[Stage]:
    """The stage and those that it is built from, the first one first."""
    stage = STAGES[name]
    return [*(lineage(stage.base) if stage.base in STAGES else []), stage]


def environment(name: str) -> dict[str, str]:
    words = [word for stage in lineage(name) for text in stage.all("ENV") for word in shlex.split(text)]
    return dict(word.split("=", 1) for word in words)


def copies(stage: Stage, *, from_stage: bool) -> list[list[str]]:
    found = [text.split() for text in stage.all("COPY")]
    return [words for words in found if words[0].startswith("--from=") is from_stage]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path through: the last pattern that matches decides, a parent's included."""
    sent = True
    for pattern in (ROOT / ".dockerignore").read_text().splitlines():
        text = pattern.removeprefix("!").removeprefix("**/")
        parts = Path(path).parts
        prefixes = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        names = parts if pattern.startswith("**/") else prefixes
        if text and not text.startswith("#") and any(fnmatch(name, text) for name in names):
            sent = pattern.startswith("!")
    return sent


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_runs_as_root(target: str) -> None:
    users = [text for stage in lineage(target) for text in stage.all("USER")]
    assert users == [f"{contract.USER_ID}:{contract.USER_ID}"]
    last_root_step = max(number for number, (word, _) in enumerate(STAGES[target].steps) if word in {"RUN", "COPY"})
    assert STAGES[target].steps.index(("USER", users[0])) > last_root_step


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_the_contracts(target: str) -> None:
    commands = " ".join(text for stage in lineage(target) for text in stage.all("RUN"))
    assert f"--uid {contract.USER_ID} " in commands
    assert f"--home-dir {contract.USER_HOME} " in commands
    assert re.search(rf"useradd [^&]* {contract.USER_NAME} &&", commands)
    assert f"-m 0700 {contract.SSH_DIR}" in commands


@pytest.mark.parametrize("target", TARGETS)
def test_the_program_is_found_and_hides_no_standard_module(target: str) -> None:
    settings = environment(target)
    assert settings["PATH"].split(":")[0] == f"{contract.IMAGE_ROOT}/bin"
    assert settings["PYTHONSAFEPATH"] == "1"
    assert STAGES[target].all("ENTRYPOINT") == [f'["{contract.IMAGE_ROOT}/bin/lockstep-{target}"]']
    assert [f"--from={target}-env", contract.IMAGE_ROOT, contract.IMAGE_ROOT] in copies(STAGES[target], from_stage=True)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_installed_are_the_pins_and_nothing_beyond(target: str) -> None:
    stage = STAGES[f"{target}-env"]
    assert [f"requirements/{target}.txt", "/tmp/requirements.txt"] in copies(stage, from_stage=False)
    installs = [text for text in stage.all("RUN") if "pip install" in text]
    assert len(installs) == 2
    assert all("--no-deps" in text for text in installs)


def test_the_worker_holds_the_small_model_and_the_programs_that_its_pods_start() -> None:
    assert ["models/recall", contract.BUNDLED_MODEL] in copies(STAGES["worker"], from_stage=False)
    packages = " ".join(STAGES["worker"].all("RUN"))
    assert {"openmpi-bin", "openssh-server", "openssh-client"} <= set(packages.split())


def test_the_ports_are_the_contracts() -> None:
    ports = {int(port) for text in STAGES["worker"].all("EXPOSE") for port in text.split()}
    assert ports == {contract.HTTP_PORT, contract.RANK_METRICS_PORT, contract.SSH_PORT}


def test_every_source_exists_and_reaches_the_build() -> None:
    sources = [word for stage in STAGES.values() for words in copies(stage, from_stage=False) for word in words[:-1]]
    assert len(sources) >= 6
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source), source


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("worker/lockstep_worker/contract/__init__.py", True),
        ("models/recall/model.safetensors", True),
        ("models/recall/train.py", False),
        ("worker/lockstep_worker/contract/__pycache__/serve.cpython-311.pyc", False),
        (".git/config", False),
        (".venv/bin/python", False),
        ("tests/conftest.py", False),
    ],
)
def test_the_build_gets_only_what_it_needs(path: str, sent: bool) -> None:
    assert is_sent(path) is sent


def test_final_stages_are_slim_and_name_no_architecture() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert STAGES["base"].base == "python:3.11-slim-bookworm"
    instructions = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"amd64|arm64|aarch64|x86_64", instructions)
    for target in TARGETS:
        assert "pip install" not in " ".join(STAGES[target].all("RUN"))
        assert "wheel" not in " ".join(STAGES[target].all("COPY"))
