"""What is wrong with a group's configuration is said before its weights are read, with the exit code that says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_worker import contract
from support.data.recall_model import PATH as MODEL
from support.ranks.serve_group import free_ports


def serve(model: Path, *flags: str) -> tuple[int, str]:
    port, metrics_port = free_ports(2)
    ports = ["--port", str(port), "--metrics-port", str(metrics_port)]
    command = [str(Path(sys.executable).parent / "lockstep-worker"), "serve", "--model", str(model), "--device", "cpu"]
    done = subprocess.run([*command, *ports, *flags], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("tokenizer*", "*.py", "__pycache__")
    return shutil.copytree(MODEL, tmp_path / "model", ignore=ignored)


def test_a_model_without_a_tokenizer_is_refused_before_its_weights_are_read(model: Path) -> None:
    code, log = serve(model)
    assert code == contract.EXIT_CONFIG, log
    assert f"model: no tokenizer can be loaded from {model}: it has none of merges.txt, tokenizer.json" in log
    assert "weights" not in log


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    code, log = serve(tmp_path)
    assert code == contract.EXIT_CONFIG, log
    assert f"model: {tmp_path} has no config.json" in log
