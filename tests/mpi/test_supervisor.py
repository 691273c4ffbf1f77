"""The real supervisor over the real mpirun; only the rank's program is a small one, so that it fails on demand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.config import Config

pytestmark = pytest.mark.mpi
BOUND_S = 60.0
TESTS = Path(__file__).parents[1]
PROGRAM = """
import os, sys
from pathlib import Path
from lockstep_worker.config import Config
from lockstep_worker.supervisor.supervise import supervise
config = Config.from_json(sys.argv[1])
sys.exit(supervise(config, os.environ, rank_module="support.ranks.mpi_rank", termination_log=Path(sys.argv[2])))
"""


class Run:
    """A supervisor with its ranks, and what they left behind."""

    def __init__(self, notes: Path, behaviour: str, ranks: int, drain_timeout: float) -> None:
        self.notes, self.ranks = notes, ranks
        self.termination_log = notes / "termination-log"
        self.termination_log.touch()
        config = Config(
            model=str(notes),
            served_model_name=behaviour,
            tensor_parallel=ranks,
            device="cpu",
            drain_timeout=drain_timeout,
        )
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))}
        environ.pop("OMP_NUM_THREADS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, config.to_json(), str(self.termination_log)],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        wait_until(lambda: len(list(self.notes.glob("*.started"))) == self.ranks or self.process.poll() is not None)
        return [int(file.read_text().split()[0]) for file in sorted(self.notes.glob("*.started"))]

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=BOUND_S)
        return self.process.returncode, errors

    def message(self) -> dict[str, object]:
        message = json.loads(self.termination_log.read_text())
        assert isinstance(message, dict)
        return message


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[Run] = []

    def start_one(behaviour: str, ranks: int = 2, drain_timeout: float = 20.0) -> Run:
        runs.append(Run(tmp_path, behaviour, ranks, drain_timeout))
        return runs[-1]

    yield start_one
    for run in runs:
        pids = [int(file.read_text().split()[0]) for file in tmp_path.glob("*.started")]
        run.process.kill()
        run.process.communicate()
        assert all_gone(pids)


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BOUND_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids: list[int]) -> bool:
    return wait_until(lambda: not any(is_alive(pid) for pid in pids))


def mpirun_of(run: Run) -> int:
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def test_a_hang_ends_all_ranks_with_its_exit_code_and_reason(start: Start) -> None:
    run = start("hang")
    pids = run.pids()
    code, errors = run.end()
    assert code == contract.EXIT_HANG
    assert run.message() == {"reason": "Hang", "exitCode": contract.EXIT_HANG, "rank": 1, "message": "no progress"}
    assert "=== threads ===" in errors
    assert all_gone(pids)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_crashed_rank_leaves_its_error_as_the_termination_message(start: Start, ranks: int) -> None:
    run = start("crash", ranks)
    assert run.end()[0] == contract.EXIT_RANK_CRASH
    assert run.message()["reason"] == "RankCrash"
    assert "KeyError: 'slot 7'" in str(run.message()["message"])


def test_an_uncaught_error_ends_all_ranks_and_its_text_is_kept(start: Start) -> None:
    run = start("raise")
    pids = run.pids()
    code, errors = run.end()
    assert code != 0
    assert "RuntimeError: uncaught" in errors
    assert "RuntimeError: uncaught" in str(run.message()["message"])
    assert all_gone(pids)


def test_a_killed_rank_ends_the_group_and_is_named(start: Start) -> None:
    run = start("wait")
    pids = run.pids()
    os.kill(pids[1], signal.SIGKILL)
    assert run.end()[0] == 128 + signal.SIGKILL
    assert (run.message()["reason"], run.message()["rank"]) == ("Signal9", 1)
    assert all_gone(pids)


def test_a_killed_rank_is_the_cause_and_not_the_peer_that_lost_it(start: Start) -> None:
    run = start("lost")
    assert run.end()[0] == 128 + signal.SIGKILL
    message = run.message()
    assert (message["reason"], message["rank"]) == ("Signal9", 1)
    assert "rank 1 was ended by a signal" in str(message["message"])
    assert "rank 0 failed: RuntimeError: Connection reset by peer" in str(message["message"])


def test_a_killed_mpirun_leaves_no_rank(start: Start) -> None:
    run = start("wait")
    pids = run.pids()
    os.kill(mpirun_of(run), signal.SIGKILL)
    assert run.end()[0] == 128 + signal.SIGKILL
    assert all_gone(pids)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_supervisor_leaves_no_rank(start: Start, ranks: int) -> None:
    run = start("wait", ranks)
    pids = run.pids()
    run.process.kill()
    assert all_gone(pids)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_becomes_a_drain_of_every_rank(start: Start, ranks: int, sig: signal.Signals) -> None:
    run = start("wait", ranks)
    run.pids()
    os.killpg(run.process.pid, sig)  # as a terminal does
    code, errors = run.end()
    assert code == 0, errors
    assert len(list(run.notes.glob("*.drained"))) == ranks
    assert run.message()["message"] == "drained"


def test_a_drain_that_never_ends_is_ended(start: Start) -> None:
    run = start("ignore-drain", drain_timeout=0.0)
    pids = run.pids()
    run.process.terminate()
    assert run.end()[0] != 0
    assert all_gone(pids)


def test_a_second_ctrl_c_ends_at_once(start: Start) -> None:
    run = start("ignore-drain", drain_timeout=3600.0)
    pids = run.pids()
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] != 0
    assert all_gone(pids)


def test_ranks_that_end_by_themselves_end_the_group_well(start: Start) -> None:
    run = start("exit")
    assert run.end()[0] == 0
    assert run.message()["reason"] == "LauncherExited"
    assert run.message()["message"] == "the ranks ended by themselves"


def test_ranks_on_a_cpu_get_one_thread_each(start: Start) -> None:
    run = start("exit")
    run.end()
    assert {file.read_text().split()[1] for file in run.notes.glob("*.started")} == {"1"}


def test_a_supervisor_that_mpirun_started_is_a_rank_itself(tmp_path: Path) -> None:
    config = Config(model=str(tmp_path), served_model_name="exit", tensor_parallel=2, device="cpu")
    mpirun = Path(sys.executable).parent / "mpirun"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ours = [sys.executable, "-c", PROGRAM, config.to_json(), str(tmp_path / "termination-log")]
    command = [str(mpirun), "-n", "2", "--map-by", ":OVERSUBSCRIBE", *ours]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=BOUND_S)
    assert result.returncode == 0, result.stderr
    assert sorted(file.name for file in tmp_path.glob("*.started")) == ["0.started", "1.started"]
