"""A data replica in each of two pods: the other pod's rank sends its tokens over the network, with keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep_worker import contract
from lockstep_worker.config import Config
from support.ranks.serve_group import START_BOUND_S
from support.ranks.two_pods import Pods, can_make_pods, open_pods, supervise

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not can_make_pods(), reason="needs root, iproute2, unshare and OpenSSH"),
]
MODEL = Path(__file__).parents[3] / "models" / "recall"
CLIENT = """
import json, sys, time
import httpx

deadline = time.monotonic() + float(sys.argv[1])
def is_ready():
    try:
        return httpx.get("http://127.0.0.1:8000/ready").status_code == 200
    except httpx.TransportError:
        return False
while not is_ready():
    assert time.monotonic() < deadline, "not ready"
    time.sleep(0.2)
body = {"model": "recall", "prompt": [[7 + i] * 20 for i in range(6)], "temperature": 0, "max_tokens": 5}
answer = httpx.post("http://127.0.0.1:8000/v1/completions", json=body | {"ignore_eos": True}, timeout=60)
metrics = [httpx.get(f"http://10.77.0.{pod}:9400/metrics").text for pod in (1, 2)]
print(json.dumps([answer.status_code, answer.json(), metrics]), file=sys.stderr)
"""


def ask(pods: Pods) -> list[object]:
    client = pods.start(0, [sys.executable, "-c", CLIENT, str(START_BOUND_S)], dict(os.environ))
    _, said = client.communicate(timeout=START_BOUND_S + 90)
    assert client.returncode == 0, said
    return list(json.loads(said))


def test_both_pods_serve_and_the_group_drains(tmp_path: Path) -> None:
    with open_pods(tmp_path) as pods:
        config = Config(model=str(MODEL), data_parallel=2, device="cpu", host="0.0.0.0", served_model_name="recall")
        process = supervise(pods, config, rank_module="lockstep_worker.rank")
        try:
            status, answer, metrics = ask(pods)
            assert status == 200, answer
            assert answer["usage"]["completion_tokens"] == 6 * 5  # type: ignore[index]
            steps = f'{contract.METRIC_PREFIX}step_tokens_total{{rank="'
            for text in metrics:  # type: ignore[attr-defined]
                computed = [float(line.split()[-1]) for line in text.splitlines() if line.startswith(steps)]
                assert computed == [3 * (20 + 4)]
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=90)
            assert process.returncode == 0, errors
            assert "did not leave" not in errors
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    if process.stderr is not None and not process.stderr.closed:
        sys.stderr.write(process.stderr.read())  # pytest shows it where the test failed
