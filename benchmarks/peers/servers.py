"""Lockstep's and vLLM's servers as processes: how each is told the same limits, started, asked whether it is up, ended.

Neither writes a line a request: Lockstep has no access log, vLLM's is turned off, and so are its statistics.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers import vllm_side
from benchmarks.peers.common import VERSIONS, Limits
from benchmarks.peers.lockstep_options import choose_options
from lockstep_worker.contract import READY_PATH

SERVED_NAME = "bench"
"""What requests call the model."""
ROOT = Path(__file__).resolve().parents[2]
_ENVIRON = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""For every server, unless the environment says otherwise: nothing leaves the machine."""
_NOT_SERVED = ("load_format", "skip_tokenizer_init")
_PROBE_S = 0.25
_ASK_TIMEOUT_S = 5.0
_END_S = 20.0
_LAST_LINES = 12


class ServerFailed(Exception):
    """A server did not start, or ended."""


class Server:
    """One server's process and what it said.

    Args:
        name: a key of `BUILDERS`.
        model: the folder of the checkpoint.
        limits: what every server is given.
        flags: the server's own, which win.
        path: folders that only this server's process looks for modules in.
        log: where its output goes.
    """

    def __init__(self, name: str, model: Path, limits: Limits, flags: Mapping[str, Any], path: str, log: Path) -> None:
        self.name, self.log, self.port = name, log, find_port()
        build, self._probe = BUILDERS[name]
        self.flags = {key: value for key, value in build(limits, dict(flags)).items() if value is not None}
        head = [sys.executable, "-m", *_PROGRAMS[name], str(model)]
        self.command = [*head, *to_words({"host": "127.0.0.1", "port": self.port, **self.flags})]
        self._path = path
        self._started_s = time.monotonic()
        with log.open("w") as out:
            self._process = subprocess.Popen(
                self.command,
                env=child_environ(path),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, bound_s: float) -> dict[str, Any]:
        """Wait until it serves; returns what it is and how it was told to run.

        Raises:
            ServerFailed: it ended, or is not ready in time; with its last words.
        """
        while not self._answers():
            self.check()
            if time.monotonic() - self._started_s > bound_s:
                raise ServerFailed(f"not ready after {bound_s:g} s: {self.last_words()}")
            time.sleep(_PROBE_S)
        own = {name: value for name, value in sorted(os.environ.items()) if name.startswith(f"{self.name.upper()}_")}
        start_s = round(time.monotonic() - self._started_s, 1)
        return {"engine": self.name, "versions": self._versions(), "flags": self.flags | own, "start_s": start_s}

    @property
    def is_alive(self) -> bool:
        """Whether its first process runs."""
        return self._process.poll() is None

    def check(self) -> None:
        """See that it still runs.

        Raises:
            ServerFailed: with its last words.
        """
        if (code := self._process.poll()) is not None:
            raise ServerFailed(f"ended with {code}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the last lines that it printed."""
        with self.log.open(errors="replace") as lines:
            return " | ".join(deque((line.strip() for line in lines if line.strip()), maxlen=_LAST_LINES))[-2000:]

    def close(self) -> None:
        """Ask it to end, and end all of its processes if it does not."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ASK_TIMEOUT_S)
        try:
            connection.request("GET", self._probe)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _versions(self) -> dict[str, str | None]:
        """Look up its libraries where it finds them."""
        where = [*filter(None, self._path.split(":")), *sys.path]
        found = {name: list(metadata.distributions(name=name, path=where)) for name in VERSIONS}
        return {name: each[0].version if each else None for name, each in found.items()}


def lockstep_flags(limits: Limits, given: dict[str, Any]) -> dict[str, Any]:
    """Give the limits as options of `lockstep-worker serve`; what is given wins."""
    return {
        "served_model_name": SERVED_NAME,
        "metrics_port": find_port(),
        "max_batch_size": limits.max_sequences,
        **choose_options(limits, {}),
        "prefix_cache": False,
        **given,
    }


def vllm_flags(limits: Limits, given: dict[str, Any]) -> dict[str, Any]:
    """Give the limits as options of `vllm serve`, tuned as its offline engine is; what is given wins."""
    tuned = {name: value for name, value in vllm_side.choose_flags(limits, {}).items() if name not in _NOT_SERVED}
    quiet = {"uvicorn_log_level": "warning", "disable_uvicorn_access_log": True, "disable_log_stats": True}
    return {"served_model_name": SERVED_NAME, **tuned, **quiet, **given}


Build = Callable[[Limits, dict[str, Any]], dict[str, Any]]
BUILDERS: Mapping[str, tuple[Build, str]] = {
    "lockstep": (lockstep_flags, READY_PATH),
    "vllm": (vllm_flags, "/health"),
}
"""By server: what makes its flags, and the path that answers 200 once it serves."""
_PROGRAMS = {
    "lockstep": ["lockstep_worker", "serve", "--model"],
    "vllm": ["vllm.entrypoints.cli.main", "serve"],
}


def to_words(flags: Mapping[str, Any]) -> list[str]:
    """Write flags for a command line: True is the bare flag, False its `--no-` form, an object its JSON."""
    words = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return words


def find_port() -> int:
    """Find a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def child_environ(path: str = "") -> dict[str, str]:
    """Make a child's environment: it finds this checkout's modules, and those of `path` before all."""
    folders = [path, str(ROOT), str(ROOT / "worker"), os.environ.get("PYTHONPATH", "")]
    return _ENVIRON | os.environ | {"PYTHONPATH": ":".join(filter(None, folders))}
