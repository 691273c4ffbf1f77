"""A rank in each of two pods: the one that stands still is named with its pod."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.health.abort import Failure
from support.data.recall_model import PATH
from support.ranks.serve_group import START_BOUND_S
from support.ranks.two_pods import NAMES, Pods, can_make_pods, open_pods, supervise

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not can_make_pods(), reason="needs root, iproute2, unshare and OpenSSH"),
]
TIMEOUT_S = 4.0
WAIT_READY = """
import sys, time
import httpx

def is_ready():
    try:
        return httpx.get("http://127.0.0.1:8000/ready").status_code == 200
    except httpx.TransportError:
        return False
deadline = time.monotonic() + float(sys.argv[1])
while not is_ready():
    assert time.monotonic() < deadline, "not ready"
    time.sleep(0.2)
"""


def wait_ready(pods: Pods) -> None:
    client = pods.start(0, [sys.executable, "-c", WAIT_READY, str(START_BOUND_S)], dict(os.environ))
    _, said = client.communicate(timeout=START_BOUND_S + 30)
    assert client.returncode == 0, said


def find_rank(rank: int, mark: str) -> int:
    """The process of a rank whose configuration holds the mark, in whatever pod."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in command and f"OMPI_COMM_WORLD_RANK={rank}".encode() in environ:
            found.append(int(folder.name))
    [pid] = found
    return pid


def test_a_rank_that_is_stopped_in_the_other_pod_is_named_with_its_pod(tmp_path: Path) -> None:
    mark = f"recall-{os.getpid()}"
    config = Config(
        model=str(PATH),
        served_model_name=mark,
        data_parallel=2,
        device="cpu",
        host="0.0.0.0",
        hang_timeout=TIMEOUT_S,
    )
    with open_pods(tmp_path) as pods:
        process = supervise(pods, config, rank_module="lockstep_worker.rank")
        try:
            wait_ready(pods)
            os.kill(find_rank(1, mark), signal.SIGSTOP)
            _, errors = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert process.returncode == contract.EXIT_HANG, errors
    # mpirun continues a stopped rank before it kills it, so that rank may speak too; the first to speak is heard.
    failure, *_ = [failure for line in errors.splitlines() if (failure := Failure.from_line(line))]
    assert failure.rank == 1
    assert failure.message.startswith(f"rank 1 ({NAMES[1]}) does not answer: rank 0 saw no beat of the group"), errors
