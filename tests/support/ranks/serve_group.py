"""A whole group as people start it: `lockstep-worker serve`, the supervisor over mpirun over ranks and a frontend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from lockstep_worker.config import Config
from lockstep_worker.supervisor.command import RANK_MODULE
from support.data.recall_model import PATH as MODEL

START_BOUND_S = 300.0
"""A rank needs ten seconds on a quiet machine, and more than a minute on a busy one."""
_OTHER_RANK = """
import os, sys
from lockstep_worker.config import Config
from lockstep_worker.supervisor.supervise import supervise
sys.exit(supervise(Config.from_json(sys.argv[1]), os.environ, rank_module="{module}"))
"""


class ServeGroup:
    """A group and what it says; `wait_ready()` before the first request.

    Args:
        rank_module: in place of the product's rank, for mutations; it must call the product's `main`.
        options: fields of `Config`.
    """

    def __init__(self, *, rank_module: str | None = None, **options: Any) -> None:
        self.ranks: int = options.setdefault("tensor_parallel", 2) * options.get("data_parallel", 1)
        self.port, self.metrics_port = free_ports(1 + self.ranks)
        options |= {"model": str(MODEL), "port": self.port, "metrics_port": self.metrics_port, "device": "cpu"}
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            _command(rank_module, options), env=_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pids: list[int] = []

    @property
    def log(self) -> str:
        return "".join(self.output)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120)

    def wait_ready(self) -> None:
        """Wait until requests are served, and note every process of the group."""
        wait_until(lambda: self.process.poll() is not None or self._is_ready(), START_BOUND_S, lambda: self.log)
        assert self.process.poll() is None, self.log
        self.pids = descendants(self.process.pid)
        assert sorted(self.rank_pids()) == list(range(self.ranks)), self.log

    def rank_pids(self) -> dict[int, int]:
        """The rank processes by rank."""
        found = {}
        for pid in descendants(self.process.pid):
            variables = dict(part.split("=", 1) for part in _read_proc(pid, "environ").split("\0") if "=" in part)
            if "OMPI_COMM_WORLD_RANK" in variables:
                found[int(variables["OMPI_COMM_WORLD_RANK"])] = pid
            elif self.ranks == 1 and RANK_MODULE in _read_proc(pid, "cmdline").split("\0"):  # no mpirun
                found[0] = pid
        return found

    def rank_metric(self, name: str, rank: int = 0) -> float:
        """Read one series without further labels from a rank's own metrics."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port + rank}/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith(f'{name}{{rank="{rank}"}} ')]
        return float(line.rsplit(" ", 1)[1])

    def complete(self, prompt: list[int] | str, **body: Any) -> dict[str, Any]:
        """Ask for a greedy completion; it must be answered."""
        with self.client() as client:
            answer = client.post("/v1/completions", json=completion(prompt, **body))
        assert answer.status_code == 200, f"{answer.text}\n{self.log}"
        result: dict[str, Any] = answer.json()
        return result

    def complete_all(self, prompts: list[list[int]], **body: Any) -> list[dict[str, Any]]:
        """Ask for greedy completions of all prompts at once; all must be answered."""

        async def ask() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=self.url, timeout=300, limits=limits) as client:
                posts = (client.post("/v1/completions", json=completion(prompt, **body)) for prompt in prompts)
                return await asyncio.gather(*posts)

        answers = asyncio.run(ask())
        assert {answer.status_code for answer in answers} == {200}, f"{answers[0].text}\n{self.log}"
        return [answer.json() for answer in answers]

    def wait_end(self, bound_s: float) -> int:
        """Wait for the supervisor's end, check that nothing is left of the group, and return the exit code."""
        try:
            code = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the group still runs after {bound_s} s:\n{self.log}") from None
        wait_until(lambda: not any(is_alive(pid) for pid in self.pids), 10, lambda: f"left over:\n{self.log}")
        self._reader.join(10)
        return code

    def close(self) -> None:
        """End the group, whatever it does; the ranks end with mpirun, and mpirun with the supervisor."""
        pids = self.pids or descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), 30)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/ready").status_code == 200
        return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)


@contextlib.contextmanager
def serve_group(**options: Any) -> Iterator[ServeGroup]:
    """Start a group, wait until it serves, and leave nothing of it."""
    group = ServeGroup(**options)
    try:
        group.wait_ready()
        yield group
    finally:
        group.close()


def completion(prompt: list[int] | str, **body: Any) -> dict[str, Any]:
    return {"model": MODEL.name, "prompt": prompt, "temperature": 0, "max_tokens": 64} | body


def free_ports(count: int) -> tuple[int, int]:
    """A free port, and the first of the free ports that follow it; below the range that the kernel hands out."""
    while True:
        first = random.SystemRandom().randrange(12_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first, first + 1


def wait_until(condition: Callable[[], bool], bound_s: float, message: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, message()
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """All processes below one, and it."""
    children = [int(child) for child in _read_proc(pid, f"task/{pid}/children").split()]
    return [pid] + [found for child in children for found in descendants(child)]


def is_alive(pid: int) -> bool:
    """Whether a process runs or sleeps; one that only waits for its parent to look is gone."""
    status = _read_proc(pid, "stat").rsplit(")", 1)[-1].split()
    return bool(status) and status[0] != "Z"


def cpu_seconds(pid: int) -> float:
    """What a process used of a core, in user and kernel mode, all threads."""
    user, system = _read_proc(pid, "stat").rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _command(rank_module: str | None, options: dict[str, Any]) -> list[str]:
    if rank_module is not None:
        return [sys.executable, "-c", _OTHER_RANK.format(module=rank_module), Config(**options).to_json()]
    flags = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        flags += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return [str(Path(sys.executable).parent / "lockstep-worker"), "serve", *flags]


def _environ() -> dict[str, str]:
    tests = Path(__file__).parents[2]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    inherited = [environ["PYTHONPATH"]] if "PYTHONPATH" in environ else []
    return environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent), *inherited])}


def _read_proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
