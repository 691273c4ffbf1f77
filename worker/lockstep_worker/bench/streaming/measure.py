"""`bench stream` from its arguments to its figures.

Without a step time steps go as fast as the sockets take them; with one, the lag says whether the frontend keeps up.
`cpu_us_per_token` is the frontend's own CPU time, however busy the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from lockstep_worker.bench import BenchFailed
from lockstep_worker.bench.machine import describe_machine
from lockstep_worker.bench.streaming.client import Stream, read_all
from lockstep_worker.bench.streaming.engine import Script, run_engine
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.parallel.address import choose_port

_PROMPT_ROOM = 64
"""Tokens that the prompt may have."""


def measure_stream(model: Path, streams: int, tokens: int, step_ms: float) -> dict[str, Any]:
    """Stream once and return the figures.

    Args:
        model: a directory with `tokenizer.json`.
        streams: how many at once.
        tokens: of each stream.
        step_ms: a step's time; 0 is none.

    Raises:
        ConfigError: the model has no tokenizer.
        BenchFailed: a token was lost, or the frontend ended.
    """
    text_ids = read_text_ids(model)
    with tempfile.TemporaryDirectory() as directory:
        addresses = f"ipc://{directory}/in", f"ipc://{directory}/out"
        script = Script(*addresses, text_ids, streams, tokens, step_ms / 1000)
        settings = build_settings(model, script)
        with run_engine(script), _run_frontend(settings) as frontend:
            before_s = _read_cpu_s(frontend.pid)
            results = asyncio.run(read_all(settings.config.port, settings.config.served_model_name, streams, tokens))
            cpu_s = _read_cpu_s(frontend.pid) - before_s
    return {
        "benchmark": "stream",
        "model": str(model),
        "streams": streams,
        "tokens_per_stream": tokens,
        "step_ms": step_ms,
        **summarize_streams(results, tokens, step_ms, cpu_s),
        "machine": describe_machine(),
    }


def summarize_streams(results: Sequence[Stream], tokens: int, step_ms: float, cpu_s: float) -> dict[str, Any]:
    """Make figures of what the clients saw.

    Args:
        results: at least one.
        tokens: that the engine sent to each.
        step_ms: a step's time; 0 is none.
        cpu_s: what the frontend used meanwhile.

    Raises:
        BenchFailed: another number of tokens arrived than was sent.
    """
    sent, total = len(results) * tokens, sum(stream.num_tokens for stream in results)
    if total != sent:
        raise BenchFailed(f"{total} tokens arrived, {sent} were sent")
    duration_s = max(stream.last_s for stream in results) - min(stream.first_s for stream in results)
    return {
        "offered_tokens_per_s": round(len(results) / step_ms * 1000) if step_ms else None,
        "tokens_per_s": round(total / duration_s),
        "lag_ms": round(duration_s * 1000 - tokens * step_ms, 1) if step_ms else None,
        "cpu_us_per_token": round(cpu_s / total * 1e6, 2),
        "bytes_per_token": round(sum(stream.num_bytes for stream in results) / total, 1),
    }


def read_text_ids(model: Path) -> list[int]:
    """Return the ids of a model's tokenizer that stand for text, ascending.

    Raises:
        ConfigError: there is no tokenizer.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        raise ConfigError([f"--model: {model} holds no tokenizer.json"])
    tokenizer = Tokenizer.from_file(str(path))
    return sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.get_added_tokens_decoder()))


def build_settings(model: Path, script: Script) -> FrontendSettings:
    """Build what rank 0 would tell a frontend of this model."""
    port = choose_port("127.0.0.1")
    return FrontendSettings(
        config=Config(model=str(model), served_model_name=model.resolve().name, port=port, max_queued=script.streams),
        max_model_len=script.tokens + _PROMPT_ROOM,
        vocab_size=script.text_ids[-1] + 1,
        end_ids=(),
        inbound=script.inbound,
        outbound=script.outbound,
        parent_pid=os.getpid(),
        ready_timeout_s=600,
    )


@contextlib.contextmanager
def _run_frontend(settings: FrontendSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Start the frontend as rank 0 does, and give it once it is ready."""
    frontend = subprocess.Popen([sys.executable, "-m", "lockstep_worker.frontend"], stdin=subprocess.PIPE)
    assert frontend.stdin is not None
    try:
        with frontend.stdin as stdin:
            stdin.write(msgspec.json.encode(settings))
        _wait_until_ready(settings.config.port, frontend)
        yield frontend
    finally:
        frontend.kill()
        frontend.wait()


def _wait_until_ready(port: int, frontend: subprocess.Popen[bytes]) -> None:
    """Wait until `/ready` answers 200."""
    while frontend.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if b" 200 " in connection.recv(64):
                return
        time.sleep(0.05)
    raise BenchFailed(f"the frontend ended with {frontend.returncode}")


def _read_cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
