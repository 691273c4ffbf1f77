"""Servers side by side over HTTP with streaming: one JSON object a line, in the style of `run`.

    python -m benchmarks.peers.http --shape 0.6b --workload steady:64,256 ttft:64 --out results.jsonl

Every server loads the same checkpoint and is given the same limits, and the same clients ask them for the same things.
They stay loaded side by side and take turns, there and back, so that only one has the GPU's compute at a time;
`--apart` loads one after the other, where two caches do not fit. What fails is written down, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.common import Limits
from benchmarks.peers.figures import Figures, find_errors, find_figures, sum_up
from benchmarks.peers.load import Clients, Seen, run_clients
from benchmarks.peers.run import order
from benchmarks.peers.servers import BUILDERS, SERVED_NAME, Server, ServerFailed, child_environ
from benchmarks.peers.workloads import LENGTHS, NAMES, Workload
from lockstep_worker.bench.arguments import positive, positives
from lockstep_worker.bench.machine import describe_device
from lockstep_worker.bench.offline.shapes import SHAPES
from lockstep_worker.bench.serving.client import Target

_ROOM = 16
"""Tokens that a request may have beside its own: blocks are granted ahead."""
_WARM_SEED = -1
_ALONE: Mapping[str, dict[str, Any]] = {"lockstep": {}, "vllm": {"gpu_memory_utilization": 0.9}}
"""What a server is told that has the GPU to itself."""


@dataclass(frozen=True, slots=True)
class Load:
    """How workloads are sent."""

    clients: Clients
    shape: str
    temperature: float
    timeout_s: float
    """Of one request."""

    def send(self, server: Server, workload: Workload, seed: int) -> Seen:
        """Send a workload once.

        Raises:
            ServerFailed: the server ended under it.
        """
        options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        body = {"model": SERVED_NAME, "temperature": self.temperature, **options}
        target = Target("127.0.0.1", server.port, "/v1/completions", (), body)
        seen = self.clients.send(target, SHAPES[self.shape]["vocab_size"], workload.lanes(seed), self.timeout_s)
        server.check()
        return seen


def measure(load: Load, servers: Sequence[Server], workload: Workload, repeats: int) -> list[dict[str, Any]]:
    """Send a workload to all servers in turn, after a warm-up; one that ends is left out from then on."""
    seen: dict[str, list[Seen]] = {server.name: [] for server in servers}
    failed: dict[str, str] = {}
    by_name = {server.name: server for server in servers}
    for repeat, names in enumerate([list(by_name), *order([*by_name], repeats)], start=_WARM_SEED):
        for name in (name for name in names if name not in failed):
            try:
                if repeat == _WARM_SEED:
                    load.send(by_name[name], workload.warm_up(), repeat)
                else:
                    seen[name].append(load.send(by_name[name], workload, repeat))
            except ServerFailed as error:
                failed[name] = str(error)
    device = describe_device("cuda" if shutil.which("nvidia-smi") else "cpu")
    common = describe(load, workload)
    return [
        {"kind": "failed", "engine": name, **common, "reason": failed[name]}
        if name in failed
        else {"engine": name, **common, **judge(workload, each), "device": device}
        for name, each in seen.items()
    ]


def judge(workload: Workload, repeats: Sequence[Seen]) -> dict[str, Any]:
    """Make a row of all repeats; without any figure it says why."""
    figures: list[Figures] = [found for seen in repeats if (found := find_figures(workload, seen))]
    errors = find_errors(repeats)
    if not figures:
        return {"kind": "failed", "reason": f"no request succeeded: {errors[0] if errors else 'none was sent'}"}
    return {
        "kind": "served",
        "repeats": len(figures),
        "figures": sum_up(figures),
        "failures": len(errors),
        "errors": sorted(set(errors))[:5],
        "clients_busiest": max(seen.busiest for seen in repeats),
    }


def describe(load: Load, workload: Workload) -> dict[str, Any]:
    """Say what was asked for."""
    return {"shape": load.shape, "temperature": load.temperature, **workload.describe()}


def choose_limits(shape: str, workloads: Sequence[Workload], cache_gib: float) -> Limits:
    """Make room for the largest workload, as far as the cache may grow; what does not fit waits, on every side."""
    config = SHAPES[shape]
    a_token = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    wanted = max(one.cache_tokens + one.sequences * _ROOM for one in workloads)
    return Limits(
        shape,
        max_sequences=max(one.sequences for one in workloads),
        context=max(one.context for one in workloads) + _ROOM,
        cache_tokens=min(wanted, int(cache_gib * 2**30) // a_token),
    )


class Bench:
    """All of a run: its servers, its clients, and the file that rows go to."""

    def __init__(self, arguments: argparse.Namespace, workloads: Sequence[Workload], clients: Clients) -> None:
        self._arguments, self._workloads = arguments, workloads
        self._limits = choose_limits(arguments.shape, workloads, arguments.cache_gib)
        self._load = Load(clients, arguments.shape, arguments.temperature, arguments.timeout_s)
        self._ends_s = time.monotonic() + arguments.budget_s

    def run(self) -> None:
        """Measure the sides together, or one after the other."""
        sides = self._arguments.sides.split(",")
        for group in [[side] for side in sides] if self._arguments.apart else [sides]:
            with self._started(group) as servers:
                for workload in self._workloads:
                    self._measure(servers, workload)

    def _measure(self, servers: dict[str, Server], workload: Workload) -> None:
        if time.monotonic() > self._ends_s:
            reason = f"not begun: the {self._arguments.budget_s:g} s were over"
            for name in servers:
                self._write({"kind": "failed", "engine": name, **describe(self._load, workload), "reason": reason})
            return
        begin = time.monotonic()
        for row in measure(self._load, [*servers.values()], workload, self._arguments.repeats):
            self._write(row | {"apart": self._arguments.apart, "all_sides_s": round(time.monotonic() - begin, 1)})
            if row["engine"] in servers and not servers[row["engine"]].is_alive:
                servers.pop(row["engine"]).close()

    @contextmanager
    def _started(self, names: Sequence[str]) -> Iterator[dict[str, Server]]:
        """Start servers one after the other, since each measures the memory that is free; end them afterwards."""
        servers: dict[str, Server] = {}
        try:
            for name in names:
                self._start(name, servers)
            yield servers
        finally:
            for server in servers.values():
                server.close()

    def _start(self, name: str, servers: dict[str, Server]) -> None:
        given, shape = self._arguments, self._arguments.shape
        log = given.out.with_suffix(f".{name}.log")
        flags = (_ALONE[name] if given.apart else {}) | given.flags.get(name, {})
        server = servers[name] = Server(name, given.checkpoint, self._limits, flags, given.path.get(name, ""), log)
        try:
            ready = server.wait_ready(given.start_bound_s)
            self._write({"kind": "server", "shape": shape, **ready, "limits": asdict(self._limits)})
        except ServerFailed as error:
            servers.pop(name).close()
            self._write({"kind": "absent", "engine": name, "shape": shape, "reason": f"over HTTP: {error}"})

    def _write(self, row: dict[str, Any]) -> None:
        with self._arguments.out.open("a") as out:
            print(json.dumps(row), file=out)
        print(json.dumps(row), flush=True)


def main() -> None:
    """Write the checkpoint where it is missing, then measure."""
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers must not outlive this
    lengths = {**LENGTHS, **{name: tuple(pair) for name, pair in arguments.lengths.items()}}
    workloads = [
        Workload(name, clients, lengths, arguments.per_client, arguments.seconds)
        for name, each in arguments.workload
        for clients in each
    ]
    writer = [sys.executable, "-m", "benchmarks.peers.checkpoint", "--shape", arguments.shape]
    subprocess.run([*writer, "--out", arguments.checkpoint], env=child_environ(), check=True)  # its memory ends with it
    with run_clients(arguments.processes) as clients:
        Bench(arguments, workloads, clients).run()


def _workload(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, clients = text.partition(":")
    if name not in NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(NAMES)}")
    return name, positives(clients)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Servers side by side over HTTP, on one GPU.")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="0.6b")
    parser.add_argument("--workload", type=_workload, nargs="+", required=True, help="NAME:CLIENTS, as steady:64,256")
    parser.add_argument("--repeats", type=positive, default=2, help="even, so that each side comes first as often")
    parser.add_argument("--per-client", type=positive, default=2, help="requests of each client in 1k1k and 8k1k")
    parser.add_argument("--seconds", type=positive, default=10, help="how long prompts arrive in arrivals")
    parser.add_argument("--lengths", type=json.loads, default={}, help='other ones, as {"steady": [512, 256]}')
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--sides", default=",".join(BUILDERS))
    parser.add_argument("--apart", action="store_true", help="load one server after the other, not all at once")
    parser.add_argument("--cache-gib", type=float, default=40.0, help="most memory of each server's cache")
    parser.add_argument("--flags", type=json.loads, default={}, help='each server\'s own, as {"vllm": {...}}')
    parser.add_argument("--path", type=json.loads, default={}, help='extra module folders, as {"vllm": "DIR"}')
    parser.add_argument("--checkpoint", type=Path, help="its folder; written where it is missing")
    parser.add_argument("--processes", type=positive, default=4, help="of the clients")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="of one request")
    parser.add_argument("--start-bound-s", type=float, default=300.0, help="of each server's start")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="no workload begins later")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.checkpoint = arguments.checkpoint or Path(tempfile.gettempdir()) / f"checkpoint-{arguments.shape}"
    return arguments


if __name__ == "__main__":
    main()
