"""Starts the real frontend as rank 0 does: a process of its own with its settings on standard input."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from lockstep_worker.config import Config
from lockstep_worker.frontend.settings import FrontendSettings
from support.worlds.engine import ScriptedEngine, say

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "recall"
MODEL_NAME = "recall"
VOCAB_SIZE = 448
END_ID = 2
CONTEXT = 1024
_OPTIONS = {field.name for field in dataclasses.fields(Config)} - set(FrontendSettings.__struct_fields__)
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Spares each client the reading of the machine's certificates."""


def load_backend() -> Tokenizer:
    """Return the test model's tokenizer, as an independent reference."""
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """Return the ids of a text."""
    ids: list[int] = load_backend().encode(text, add_special_tokens=False).ids
    return ids


class Frontend:
    """A running frontend and the scripted engine behind it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, engine: ScriptedEngine) -> None:
        self.process = process
        self.url = url
        self.engine = engine

    def client(self, **options: Any) -> httpx.Client:
        """Return an HTTP client for it."""
        return httpx.Client(base_url=self.url, timeout=60, verify=_NO_TLS, **options)

    def complete(self, **body: Any) -> httpx.Response:
        """Post a completion; `model` and `prompt` have defaults."""
        with self.client() as client:
            return client.post("/v1/completions", json={"model": MODEL_NAME, "prompt": "COPY"} | body)

    def chat(self, **body: Any) -> httpx.Response:
        """Post a chat completion; `model` and `messages` have defaults."""
        messages = [{"role": "user", "content": "COPY ab"}]
        with self.client() as client:
            return client.post("/v1/chat/completions", json={"model": MODEL_NAME, "messages": messages} | body)

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def metric(self, name: str) -> float:
        """Return the value of one series, named as the text format names it; 0 where it is absent."""
        for line in httpx.get(f"{self.url}/metrics", verify=_NO_TLS).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def wait_for_metric(self, name: str, value: float, limit_s: float) -> None:
        """Wait until a series has a value."""
        wait_until(lambda: self.metric(name) == value, limit_s, f"{name} is {self.metric(name)}, not {value}")


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a whole stream that ended well."""
    lines = [line for line in text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def wait_until(condition: Any, limit_s: float, message: str = "") -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, message or "the condition did not come true in time"
        time.sleep(0.01)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def start_frontend(*, wait_ready: bool = True, **settings: Any) -> Iterator[Frontend]:
    """Start a frontend and its engine; settings are those of `settings_for`."""
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        addresses: dict[str, Any] = {"inbound": f"ipc://{directory}/in", "outbound": f"ipc://{directory}/out"}
        with ScriptedEngine(**addresses, script=say(encode("Q=0731")), is_silent=not wait_ready) as engine:
            process = start_process(settings_for(port=port, **(addresses | settings)))
            frontend = Frontend(process, f"http://127.0.0.1:{port}", engine)
            try:
                wait_until(lambda: answers(frontend, "/ready" if wait_ready else "/health"), 120)
                yield frontend
            finally:
                process.kill()
                process.wait()


def settings_for(**given: Any) -> dict[str, Any]:
    """Return whole settings for the test model, some replaced: fields of `FrontendSettings`, or options of `Config`."""
    options = {"model": str(MODEL), "served_model_name": MODEL_NAME}
    for name in _OPTIONS & given.keys():
        options[name] = given.pop(name)
    return {
        "config": options,
        "max_model_len": CONTEXT,
        "vocab_size": VOCAB_SIZE,
        "end_ids": [END_ID],
        "parent_pid": os.getpid(),
    } | given


def start_process(settings: dict[str, Any], **options: Any) -> subprocess.Popen[bytes]:
    """Start the process with settings on its standard input."""
    process = subprocess.Popen([sys.executable, "-m", "lockstep_worker.frontend"], stdin=subprocess.PIPE, **options)
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode())
    process.stdin.close()
    process.stdin = None  # `communicate` would flush it
    return process


def answers(frontend: Frontend, path: str) -> bool:
    """Whether a path answers 200."""
    assert frontend.process.poll() is None, "the frontend ended at its start"
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(frontend.url + path, verify=_NO_TLS).status_code == 200
    return False
