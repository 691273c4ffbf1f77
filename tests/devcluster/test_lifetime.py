"""What a cluster leaves behind when it ends: nothing, however it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devcluster.control import state
from devcluster.control.cluster import Cluster
from devcluster.errors import DevclusterError, ServerError
from devcluster.paths import ROOT

pytestmark = pytest.mark.cluster

START = """
import sys, time
from pathlib import Path
from devcluster.control.cluster import Cluster
cluster = Cluster("orphan", Path(sys.argv[1]))
cluster.start()
print("started", flush=True)
time.sleep(600)
"""


def processes_in(network: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns" / "net") == network:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_stop_leaves_no_process_no_network_and_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links, mounts = Path("/proc/net/dev").read_text().count(":"), mount_points()
    cluster = Cluster("one", tmp_path)
    cluster.start()
    network = network_of(cluster.namespaces.holder_pid)
    assert len(processes_in(network)) >= 6
    # A program that forks and leaves its parent must go as well.
    cluster.servers.start("stray", ["sh", "-c", "setsid sleep 1000 & exec sleep 1000"])
    guest = cluster.popen(["sleep", "1000"])
    # On a busy machine a program can be slow to enter: it is still in the host's network when the cluster ends.
    enter = cluster.command
    monkeypatch.setattr(cluster, "command", lambda argv, cwd: ["sh", "-c", 'sleep 5; "$@"', "sh", *enter(argv, cwd)])
    latecomer = cluster.popen(["sleep", "1000"])

    cluster.stop()

    assert [program.wait(timeout=30) for program in (guest, latecomer)] == [-signal.SIGKILL] * 2
    assert processes_in(network) == []
    assert Path("/proc/net/dev").read_text().count(":") == links
    assert mount_points() == mounts
    assert not (cluster.state / "pki").exists()


def test_a_program_for_a_cluster_that_does_not_run_is_refused() -> None:
    command = [sys.executable, "-m", "devcluster", "--name", "never-started", "run", "--", "true"]

    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert answer.returncode == 1
    assert "no cluster is running in" in answer.stderr


def mount_points() -> list[str]:
    """All but the named network namespaces of tests that run beside this one; a cluster's have no names."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if not point.startswith("/run/netns")]


def test_a_killed_starter_takes_its_cluster_with_it(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", START, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    assert starter.stdout.readline() == "started\n"
    folder = tmp_path / "orphan"
    with pytest.raises(DevclusterError, match="is running"):
        state.claim(folder)
    network = network_of(state.running(folder).holder_pid)

    starter.send_signal(signal.SIGKILL)
    starter.wait()

    assert within(20, lambda: not processes_in(network))
    descriptor = state.claim(folder)
    assert [entry.name for entry in folder.iterdir()] == ["lock"]
    state.release(folder, descriptor)


def test_a_server_that_ends_is_named_with_the_end_of_its_log(cluster: Cluster) -> None:
    cluster.servers.start("crasher", ["sh", "-c", "echo no such luck; exit 3"])

    with pytest.raises(ServerError, match=r"(?s)crasher ended with exit code 3.*no such luck"):
        cluster.wait_until("something else is ready", lambda: False, 30)

    cluster.servers.stop("crasher")
