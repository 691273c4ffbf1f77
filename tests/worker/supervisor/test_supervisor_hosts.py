from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep_worker.supervisor import hosts as hosts_module
from lockstep_worker.supervisor.hosts import HostsMissing, read_hosts, wait_for_hosts
from lockstep_worker.supervisor.process import Signals


@pytest.fixture
def as_if_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loopback is always this host; take the shortcut away, so that its port is tried like another host's."""
    monkeypatch.setattr(hosts_module, "_is_local", lambda *_: False)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def no_wait(_: float) -> bool:
    return False


def test_a_hostfile_is_read_in_order(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("# made by mpi-operator\njob-launcher.job.ns.svc slots=4\n\njob-worker-0.job.ns.svc slots=4 # x\n")
    assert read_hosts(file) == ["job-launcher.job.ns.svc", "job-worker-0.job.ns.svc"]


def test_a_hostfile_without_hosts_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("# nothing\n")
    with pytest.raises(HostsMissing, match="names no host"):
        read_hosts(file)


def test_this_host_needs_no_ssh_server() -> None:
    assert wait_for_hosts(["localhost"], 1, 0, no_wait)


@pytest.mark.usefixtures("as_if_elsewhere")
def test_a_host_that_accepts_is_there(port: int) -> None:
    assert wait_for_hosts(["127.0.0.1"], port, 0, no_wait)


@pytest.mark.usefixtures("as_if_elsewhere")
def test_each_missing_host_is_named_with_its_fault(port: int) -> None:
    with pytest.raises(HostsMissing) as caught:
        wait_for_hosts(["127.0.0.1", "127.0.0.2", "not a name"], port, 0, no_wait)
    text = str(caught.value)
    assert "2 of 3 hosts not reached" in text
    assert f"127.0.0.2: port {port} is not open" in text
    assert "not a name: the name does not resolve" in text


@pytest.mark.usefixtures("as_if_elsewhere")
def test_a_host_that_comes_later_is_waited_for() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

        def listen_now(_: float) -> bool:
            server.listen()
            return False

        assert wait_for_hosts(["127.0.0.1"], server.getsockname()[1], 60, listen_now)


@pytest.mark.usefixtures("as_if_elsewhere")
def test_a_stop_ends_the_waiting() -> None:
    assert not wait_for_hosts(["not a name"], 1, 60, lambda _: True)


def test_signals_are_kept_until_they_are_taken_and_end_a_sleep() -> None:
    program = (
        "import os, signal, sys, time; from lockstep_worker.supervisor.process import Signals\n"
        "with Signals() as signals:\n"
        "    assert signals.take() is None\n"
        "    os.kill(os.getpid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGINT)\n"
        "    print(*sorted(sig.name for sig in (signals.wait(60), signals.wait(60))))\n"
    )
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout == "SIGINT SIGTERM\n", result.stderr
    assert time.monotonic() - started < 30


def test_the_former_handlers_are_back_after_use() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
