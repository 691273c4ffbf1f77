"""How many tokens a second the frontend streams: the real process, real sockets, and an engine that only sends tokens.

Three processes: the frontend, an engine that publishes one token a stream and step, and this one, which reads all
streams. `--step-ms 0` sends steps as fast as the sockets take them; otherwise one step every so many milliseconds, and
the lag says whether the frontend keeps up. `cpu_us_per_token` is the frontend's own CPU time, however busy the machine.

    python benchmarks/frontend_stream.py --streams 128 --tokens 1000 --step-ms 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from lockstep_worker.frontend.settings import FrontendSettings
from lockstep_worker.wire.messages import FinishCode, Inbound, NewRequest, Progress, Tokens

MODEL = Path(__file__).resolve().parents[1] / "models" / "recall"
TEXT_IDS = range(3, 430)


def run_engine(inbound: str, outbound: str, streams: int, tokens: int, step_s: float) -> None:
    """Wait until all streams are there, then publish a token for each of them in every step."""
    context = zmq.Context()
    requests, publisher = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    requests.connect(inbound)
    publisher.connect(outbound)
    publisher.send(msgspec.msgpack.encode(Progress(0, 0, 0, 0, 1)))
    handles: list[int] = []
    while len(handles) < streams:
        message: Inbound = msgspec.msgpack.decode(requests.recv(), type=Inbound)
        if isinstance(message, NewRequest):
            handles.append(message.handle)
    rng = np.random.default_rng(0)
    next_s = time.monotonic()
    for step in range(tokens):
        codes = [FinishCode.LENGTH if step == tokens - 1 else 0] * streams
        drawn = rng.integers(TEXT_IDS.start, TEXT_IDS.stop, streams)
        publisher.send(msgspec.msgpack.encode(Tokens.pack(0, step, handles, drawn, codes)))
        next_s += step_s
        time.sleep(max(0.0, next_s - time.monotonic()))
    context.destroy(linger=-1)


async def read_stream(port: int, tokens: int) -> tuple[float, float, int, int]:
    """Return when the first and the last byte of text came, the bytes, and the tokens that the usage chunk counts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    body = json.dumps(
        {
            "model": "recall",
            "prompt": "COPY",
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    writer.write(
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    first_s, num_bytes, tail = time.monotonic(), 0, b""
    while chunk := await reader.read(1 << 18):
        num_bytes += len(chunk)
        tail = (tail + chunk)[-600:]
    last_s = time.monotonic()
    writer.close()
    count = int(tail.rsplit(b'"completion_tokens":', 1)[1].split(b",")[0])
    return first_s, last_s, num_bytes, count


async def read_all(port: int, streams: int, tokens: int) -> list[tuple[float, float, int, int]]:
    """Read all streams at once."""
    return list(await asyncio.gather(*(read_stream(port, tokens) for _ in range(streams))))


def start_frontend(directory: str, port: int, tokens: int, streams: int) -> subprocess.Popen[bytes]:
    """Start the frontend as rank 0 does."""
    process = subprocess.Popen([sys.executable, "-m", "lockstep_worker.frontend"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    settings = FrontendSettings(
        model_path=str(MODEL),
        served_model_name="recall",
        max_model_len=tokens + 64,
        vocab_size=448,
        block_size=16,
        prefix_cache=True,
        end_ids=(2,),
        inbound=f"ipc://{directory}/in",
        outbound=f"ipc://{directory}/out",
        parent_pid=os.getpid(),
        port=port,
        max_queued=streams,
        ready_timeout_s=600,
    )
    process.stdin.write(msgspec.json.encode(settings))
    process.stdin.close()
    return process


def wait_until_ready(port: int, frontend: subprocess.Popen[bytes]) -> None:
    """Wait until `/ready` answers 200."""
    while frontend.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if b" 200 " in connection.recv(64):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"the frontend ended with {frontend.returncode}")


def read_cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(streams: int, tokens: int, step_ms: float) -> dict[str, Any]:
    """Run once and return the figures."""
    with tempfile.TemporaryDirectory() as directory:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        frontend = start_frontend(directory, port, tokens, streams)
        addresses = (f"ipc://{directory}/in", f"ipc://{directory}/out")
        engine = multiprocessing.Process(target=run_engine, args=(*addresses, streams, tokens, step_ms / 1000))
        engine.start()
        try:
            wait_until_ready(port, frontend)
            cpu_before = read_cpu_s(frontend.pid)
            results = asyncio.run(read_all(port, streams, tokens))
            cpu_s = read_cpu_s(frontend.pid) - cpu_before
        finally:
            engine.terminate()
            engine.join()
            frontend.kill()
            frontend.wait()
    first_s, last_s = min(r[0] for r in results), max(r[1] for r in results)
    total = sum(r[3] for r in results)
    assert total == streams * tokens, f"{total} tokens arrived, {streams * tokens} were sent"
    return {
        "streams": streams,
        "tokens_per_stream": tokens,
        "step_ms": step_ms,
        "offered_tokens_per_s": round(streams / step_ms * 1000) if step_ms else None,
        "tokens_per_s": round(total / (last_s - first_s)),
        "lag_ms": round((last_s - first_s - tokens * step_ms / 1000) * 1000, 1) if step_ms else None,
        "cpu_us_per_token": round(cpu_s / total * 1e6, 2),
        "bytes_per_token": round(sum(r[2] for r in results) / total, 1),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--step-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.streams, arguments.tokens, arguments.step_ms)))


if __name__ == "__main__":
    main()
