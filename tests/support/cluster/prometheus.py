"""A real Prometheus on loopback with a folder of its own; scrapes what its configuration says."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

START_S = 30.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus, asked over its HTTP API."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer.

        Raises:
            AssertionError: Prometheus answered with an error; the message holds it.
        """
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now; a scalar is one series without labels."""
        data = self.get("query", query=expression)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        return list(data["result"])

    def wait_for(self, what: str, condition: Callable[[], bool], timeout_s: float = START_S) -> None:
        """Wait until the condition holds.

        Raises:
            AssertionError: it does not within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"Prometheus after {timeout_s} s: no {what}"
            time.sleep(0.2)


@contextmanager
def run_prometheus(configuration: Mapping[str, Any], folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus until the block ends; its data and log stay in `folder`."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(dict(configuration)))
    address = f"127.0.0.1:{_free_port()}"
    command = ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://{address}")
        prometheus.wait_for("answer", lambda: _is_ready(prometheus.url, process, folder))
        yield prometheus
    finally:
        process.terminate()
        process.wait(timeout=30)


def _is_ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "prometheus.log").read_text()
    try:
        with urllib.request.urlopen(f"{url}/-/ready"):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
