import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep_worker import contract
from lockstep_worker.wire.messages import Drained
from support.worlds.engine import ScriptedEngine, say, say_forever
from support.worlds.frontend import (
    Frontend,
    answers,
    encode,
    free_port,
    settings_for,
    start_frontend,
    start_process,
    wait_until,
)

A = encode("a")[0]


class Background:
    """A request that runs in a thread."""

    def __init__(self, frontend: Frontend, **body: Any) -> None:
        self.reply: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, args=(frontend, body))
        self._thread.start()

    def _run(self, frontend: Frontend, body: dict[str, Any]) -> None:
        self.reply = frontend.complete(**body)

    def join(self) -> httpx.Response:
        self._thread.join(20)
        assert self.reply is not None, "the request got no answer"
        return self.reply


def start_two(frontend: Frontend) -> tuple[Background, Background]:
    """Start an endless stream and an endless whole answer."""
    frontend.engine.script = say_forever(A)
    both = Background(frontend, stream=True), Background(frontend)
    wait_until(lambda: len(frontend.engine.running) == 2, 10)
    time.sleep(0.1)  # some tokens
    return both


def test_before_the_first_progress_it_is_alive_and_not_ready() -> None:
    with start_frontend(wait_ready=False) as frontend, frontend.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 503
        reply = frontend.complete()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_starting")
        assert int(reply.headers["retry-after"]) >= 1
        frontend.engine.is_silent = False
        wait_until(lambda: client.get("/ready").status_code == 200, 10)
        assert frontend.complete().status_code == 200


def test_an_engine_without_progress_is_not_ready_until_it_goes_on() -> None:
    with start_frontend(ready_timeout_s=0.5) as frontend, frontend.client() as client:
        frontend.engine.is_silent = True
        wait_until(lambda: client.get("/ready").status_code == 503, 10)
        assert "progress" in client.get("/ready").json()["error"]["message"]
        assert client.get("/health").status_code == 200
        frontend.engine.is_silent = False
        wait_until(lambda: client.get("/ready").status_code == 200, 10)


def test_a_drain_finishes_what_runs_and_refuses_the_rest() -> None:
    with start_frontend() as frontend, frontend.client() as client:
        frontend.engine.script = say(encode("a" * 400))
        running = Background(frontend)
        wait_until(lambda: len(frontend.engine.running) == 1, 10)
        reply = client.post("/drain")
        assert (reply.status_code, reply.json()) == (202, {"draining": True, "in_flight": 1})
        refused = frontend.complete()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
        assert running.join().json()["choices"][0]["text"] == "a" * 400
        wait_until(lambda: client.get("/drain").json() == {"draining": True, "in_flight": 0}, 5)
        assert not frontend.engine.is_shut_down
        assert frontend.terminate() == 0
        assert frontend.engine.is_shut_down


def test_sigterm_lets_running_requests_finish() -> None:
    with start_frontend() as frontend:
        frontend.engine.script = say(encode("a" * 400))
        running = Background(frontend, stream=True)
        wait_until(lambda: len(frontend.engine.running) == 1, 10)
        frontend.process.send_signal(signal.SIGTERM)
        frontend.process.send_signal(signal.SIGINT)
        assert running.join().text.endswith("data: [DONE]\n\n")
        assert frontend.process.wait(20) == 0
        assert frontend.engine.is_shut_down
        assert frontend.engine.cancelled == []


def test_what_does_not_finish_in_time_is_cancelled_and_told_so() -> None:
    with start_frontend(drain_timeout=0.3) as frontend:
        stream, whole = start_two(frontend)
        assert frontend.terminate() == 0
        assert sorted(frontend.engine.cancelled) == sorted(r.handle for r in frontend.engine.requests)
        assert whole.join().status_code == 503
        last = stream.join().text.strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"


def test_ranks_that_do_not_answer_the_shutdown_do_not_hold_it_up() -> None:
    with start_frontend(shutdown_timeout_s=0.3) as frontend:
        frontend.engine.__exit__()
        assert frontend.terminate() == 0


def test_a_lost_engine_ends_every_response_with_the_reason_as_it_was_said() -> None:
    with start_frontend() as frontend:
        stream, whole = start_two(frontend)
        reason = "rank 1 does not answer: rank 0 saw no progress for 300 s"
        frontend.engine.die(rank=0, reason=reason, exit_code=contract.EXIT_HANG)
        assert frontend.process.wait(20) == contract.EXIT_HANG
        reply = whole.join()
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "engine_down"
        *events, last = [json.loads(e.removeprefix("data: ")) for e in stream.join().text.strip().split("\n\n")]
        assert all(event["choices"][0]["finish_reason"] is None for event in events)
        for error in (reply.json()["error"], last["error"]):
            assert error["message"] == f"The engine is down: {reason}"


def test_a_drain_waits_for_every_rank_that_publishes() -> None:
    with start_frontend(data_parallel=2, shutdown_timeout_s=60) as frontend:
        frontend.process.send_signal(signal.SIGTERM)
        wait_until(lambda: frontend.engine.is_shut_down, 20)  # rank 0 says that it is done
        frontend.engine.publish(Drained(0))
        time.sleep(0.5)
        assert frontend.process.poll() is None
        frontend.engine.publish(Drained(3))
        assert frontend.process.wait(20) == 0


def test_leaving_the_loop_unasked_is_a_failure() -> None:
    with start_frontend() as frontend:
        frontend.engine.publish(Drained(0))
        assert frontend.process.wait(20) == contract.EXIT_FRONTEND


PARENT = """
import json, os, subprocess, sys, time
settings = json.loads(sys.argv[1]) | {"parent_pid": os.getpid()}
command = [sys.executable, "-m", "lockstep_worker.frontend"]
process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
process.stdin.write(json.dumps(settings).encode())
process.stdin.close()
print(process.pid, flush=True)
time.sleep(600)
"""


def test_the_death_of_its_parent_ends_it_and_tells_the_clients(tmp_path: Path) -> None:
    port = free_port()
    addresses: dict[str, Any] = {"inbound": f"ipc://{tmp_path}/in", "outbound": f"ipc://{tmp_path}/out"}
    command = [sys.executable, "-c", PARENT, json.dumps(settings_for(port=port, **addresses))]
    with ScriptedEngine(**addresses, script=say_forever(A)) as engine:
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        frontend = Frontend(parent, f"http://127.0.0.1:{port}", engine)
        try:
            wait_until(lambda: answers(frontend, "/ready"), 60)
            stream, whole = start_two(frontend)
            os.killpg(parent.pid, signal.SIGKILL)  # as mpirun kills a rank: with its whole process group
            assert whole.join().json()["error"]["code"] == "engine_down"
            assert "engine_down" in stream.join().text
            wait_until(lambda: not is_running(pid), 10)
        finally:
            parent.kill()
            parent.wait()


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_frontend_whose_parent_is_another_ends_at_once(tmp_path: Path) -> None:
    addresses = {"inbound": f"ipc://{tmp_path}/in", "outbound": f"ipc://{tmp_path}/out"}
    process = start_process(settings_for(port=free_port(), parent_pid=1, **addresses), stderr=subprocess.PIPE)
    assert b"gone" in process.communicate(timeout=60)[1]
    assert process.returncode == contract.EXIT_FRONTEND


def test_a_taken_port_ends_it_with_a_reason(tmp_path: Path) -> None:
    addresses = {"inbound": f"ipc://{tmp_path}/in", "outbound": f"ipc://{tmp_path}/out"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start_process(settings_for(port=taken.getsockname()[1], **addresses), stderr=subprocess.PIPE)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == contract.EXIT_FRONTEND
    assert b"Address already in use" in errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"port": "8000"}, [b"port"], id="type"),
        pytest.param({"port": 0}, [b"port", b"1"], id="limit"),
        pytest.param({"prot": 8000}, [b"prot"], id="unknown"),
        pytest.param({"config": {"model": ".", "prot": 8000}}, [b"prot"], id="unknown option"),
        pytest.param({"model": "/nonexistent"}, [b"/nonexistent", b"tokenizer"], id="model"),
    ],
)
def test_wrong_settings_end_it_with_the_field(tmp_path: Path, change: dict[str, Any], words: list[bytes]) -> None:
    addresses = {"inbound": f"ipc://{tmp_path}/in", "outbound": f"ipc://{tmp_path}/out"}
    process = start_process(settings_for(**{"port": free_port()} | addresses | change), stderr=subprocess.PIPE)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == contract.EXIT_CONFIG
    assert all(word in errors for word in words), errors


def test_the_api_key_guards_what_costs_and_nothing_else() -> None:
    with start_frontend(api_key="geheim") as frontend, frontend.client() as client:
        key = {"Authorization": "Bearer geheim"}
        body = {"model": "recall", "prompt": "COPY"}
        for wrong in (
            {},
            {"Authorization": "Bearer geheim2"},
            {"Authorization": "geheim"},
            {"Authorization": "Bearer é"},
        ):
            encoded = {name.encode(): value.encode("latin-1") for name, value in wrong.items()}
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/drain"):
                reply = client.post(path, json=body, headers=encoded)
                assert reply.status_code == 401, path
                assert reply.json()["error"]["code"] == "invalid_api_key"
                assert "geheim" not in reply.text
            assert client.get("/v1/models", headers=encoded).status_code == 401
        assert client.post("/v1/completions", json=body, headers=key).status_code == 200
        assert client.get("/v1/models", headers=key).status_code == 200
        assert client.post("/tokenize", json={"prompt": "a"}, headers=key).status_code == 200
        for path in ("/health", "/ready", "/metrics", "/drain", "/openapi.json"):
            assert client.get(path).status_code == 200, path
        assert client.post("/drain", headers=key).status_code == 202
