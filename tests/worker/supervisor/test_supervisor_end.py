from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.supervisor.supervise import find_mpirun
from lockstep_worker.supervisor.termination import refuse

PROGRAM = """
import dataclasses, os, sys
from pathlib import Path
from lockstep_worker.config import Config
from lockstep_worker.supervisor.supervise import supervise
config, module, log = Config.from_json(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
sys.exit(supervise(config, os.environ, rank_module=module, termination_log=log))
"""


def search_path(directory: Path) -> str:
    return os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", "")))


def run_rank(directory: Path, source: str) -> tuple[int, dict[str, object]]:
    """Supervise one rank that runs a given source; return the exit code and the termination message."""
    (directory / "the_rank.py").write_text(source)
    log = directory / "termination-log"
    log.touch()
    environ = {**os.environ, "PYTHONPATH": search_path(directory)}
    command = [sys.executable, "-c", PROGRAM, Config(model="m", device="cpu").to_json(), "the_rank", str(log)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    return result.returncode, json.loads(log.read_text())


def test_a_refused_configuration_is_the_termination_message(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    assert refuse(ConfigError(["port: 0 is below the limit, 1", "model: missing"]), termination_log=log) == 64
    message = json.loads(log.read_text())
    assert message["reason"] == "InvalidConfiguration"
    assert "port: 0" in message["message"]
    assert "model: missing" in message["message"]


def test_no_termination_log_is_made_where_there_is_none(tmp_path: Path) -> None:
    refuse(ConfigError(["x"]), termination_log=tmp_path / "log")
    refuse(ConfigError(["x"]), termination_log=tmp_path)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("text", ["\n" * 5000, "ä" * 5000, "x" * 100_000])
def test_a_long_message_fits_into_what_kubernetes_keeps(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log"
    log.touch()
    refuse(ConfigError(["start" + text]), termination_log=log)
    assert log.stat().st_size <= 4096
    assert json.loads(log.read_text())["message"].startswith("start")


def test_the_last_lines_of_a_rank_that_said_no_reason_are_kept(tmp_path: Path) -> None:
    code, message = run_rank(tmp_path, "import sys; sys.stderr.write('torch: no such device'); sys.exit(3)")
    assert (code, message["reason"], message["message"]) == (3, "Failed", "torch: no such device")


def test_what_a_rank_said_is_worth_more_than_how_it_ended(tmp_path: Path) -> None:
    source = """
import os, signal
from lockstep_worker.health import abort
abort._say_failure(86, "no progress", 0)
os.kill(os.getpid(), signal.SIGALRM)
"""
    code, message = run_rank(tmp_path, source)
    assert code == contract.EXIT_HANG
    assert message == {"reason": "Hang", "exitCode": 86, "rank": 0, "message": "no progress"}


def test_a_flood_of_output_is_passed_on_whole(tmp_path: Path) -> None:
    (tmp_path / "the_rank.py").write_text("import sys\nfor i in range(50_000): print('line', i, file=sys.stderr)")
    command = [sys.executable, "-c", PROGRAM, Config(model="m").to_json(), "the_rank", str(tmp_path / "none")]
    environ = {**os.environ, "PYTHONPATH": search_path(tmp_path)}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    lines = [line for line in result.stderr.splitlines() if line.startswith("line ")]
    assert (result.returncode, lines) == (0, [f"line {number}" for number in range(50_000)])


def test_a_missing_mpirun_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="mpirun: not found beside Python or on PATH"):
        find_mpirun(str(tmp_path / "python"))


def test_mpirun_beside_the_interpreter_wins(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    mpirun.chmod(0o755)
    found = find_mpirun(str(tmp_path / "python"))
    assert (found.path, found.major) == (str(mpirun), 4)
