"""One rank in each of two pods: the real supervisor, mpirun, ssh and `lockstep-worker sshd`, as under an MPIJob."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.config import Config
from support.ranks.two_pods import NAMES, Pods, can_make_pods, open_pods, supervise

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.e2e,
    pytest.mark.skipif(not can_make_pods(), reason="needs root, iproute2, unshare and OpenSSH"),
]
BOUND_S = 60.0


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with open_pods(tmp_path) as pods:
        yield pods


@pytest.fixture
def start(pods: Pods, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start_one(behaviour: str) -> subprocess.Popen[str]:
        config = Config(model=str(tmp_path), served_model_name=behaviour, tensor_parallel=2, device="cpu")
        started.append(supervise(pods, config, rank_module="support.ranks.mpi_rank"))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()
        process.communicate()
    assert wait_until(lambda: not any(Path(f"/proc/{words[0]}").exists() for words in notes_of(tmp_path)))


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BOUND_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def notes_of(directory: Path) -> list[list[str]]:
    return [file.read_text().split() for file in sorted(directory.glob("*.started"))]


def test_rank_0_is_in_the_launcher_and_rank_1_in_the_worker_with_its_thread_limit(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("exit")
    _, errors = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, errors
    assert [words[1:] for words in notes_of(tmp_path)] == [["1", NAMES[0]], ["1", NAMES[1]]]


def test_a_signal_drains_the_rank_of_the_other_pod_too(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("wait")
    assert wait_until(lambda: len(notes_of(tmp_path)) == 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, errors
    assert len(list(tmp_path.glob("*.drained"))) == 2


def test_a_hang_in_the_other_pod_ends_both_ranks(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("hang")
    _, errors = process.communicate(timeout=BOUND_S)
    assert process.returncode == contract.EXIT_HANG, errors
    assert "=== threads ===" in errors


def test_a_killed_supervisor_leaves_no_rank_in_either_pod(
    start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("wait")
    assert wait_until(lambda: len(notes_of(tmp_path)) == 2)
    process.kill()
    assert wait_until(lambda: not any(Path(f"/proc/{words[0]}").exists() for words in notes_of(tmp_path)))
