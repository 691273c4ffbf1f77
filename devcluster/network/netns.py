"""The namespaces of one cluster: a network without an uplink, mounts of its own, and a PID namespace for what it runs.

Two ways lead in. `outside` runs a host program in the cluster's network while it stays an ordinary process of the
host: signals reach it, its parent waits for it. `inside` runs a server in the PID namespace too: it cannot outlive the
cluster.
This file must not know which programs those are.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from devcluster.errors import ServerError
from devcluster.paths import ROOT


class Namespaces:
    """The namespaces held by one holder process."""

    def __init__(self, holder_pid: int, inner_pid: int, holder: subprocess.Popen[str] | None = None) -> None:
        self.holder_pid = holder_pid
        self.inner_pid = inner_pid
        self._holder = holder
        self._network = _namespace(holder_pid, "net")
        self._inner = _namespace(inner_pid, "pid_for_children")
        if not self._network or self._network == _namespace(os.getpid(), "net"):
            raise ServerError(f"process {holder_pid} holds no network of a cluster")

    @classmethod
    def create(cls, resolv_conf: Path, log: IO[bytes], path: str) -> "Namespaces":
        """Makes new namespaces that end with this process, however it ends.

        Args:
            resolv_conf: what programs in the namespace read as /etc/resolv.conf.
            log: takes the holder's messages.
            path: PATH for the holder.

        Raises:
            ServerError: the kernel or the rights of this process do not allow it.
        """
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--propagation", "private"]
        holder = subprocess.Popen(
            [*command, sys.executable, "-m", "devcluster.network.holder", str(resolv_conf)],
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for the starter, who then stops the cluster in order
        )
        assert holder.stdout is not None
        line = holder.stdout.readline().strip()
        if not line.isdigit():
            holder.wait()
            raise ServerError(f"the namespaces could not be made (exit code {holder.returncode})")
        return cls(holder.pid, int(line), holder)

    def outside(self, argv: list[str], cwd: Path) -> list[str]:
        """The command that runs `argv` on the cluster's network, as a process of the host's PID namespace."""
        enter = ["nsenter", f"--target={self.holder_pid}", "--net", "--mount", f"--wdns={cwd}"]
        return [*enter, "--", "setpriv", "--pdeathsig", "KILL", "--", *argv]

    def inside(self, argv: list[str], cwd: Path) -> list[str]:
        """The command that runs `argv` as a process of the cluster; nsenter, its parent, carries the exit code."""
        proc = f"/proc/{self.inner_pid}/ns"
        enter = [f"--net={proc}/net", f"--mount={proc}/mnt", f"--pid={proc}/pid_for_children", f"--wdns={cwd}"]
        return ["nsenter", *enter, "--", "setpriv", "--pdeathsig", "KILL", "--", *argv]

    def destroy(self, timeout_s: float = 30.0) -> None:
        """Ends every process of the cluster; the namespaces and their mounts go with the last one.

        Raises:
            ServerError: some are still there after `timeout_s` seconds.
        """
        with _pinned(self.holder_pid, "net"), _pinned(self.inner_pid, "pid_for_children"):
            _kill(self.holder_pid)
            _kill(self.inner_pid)
            if self._holder is not None:
                self._holder.wait()
            deadline = time.monotonic() + timeout_s
            # The kernel ends what is in the PID namespace; programs that the host runs in the network are named one by
            # one, and looked for again, since one of them may have forked meanwhile.
            while left := [pid for pid in self.members() if _is_running(pid)]:
                if time.monotonic() > deadline:
                    raise ServerError(f"processes {left} of the cluster do not end")
                for pid in left:
                    _kill(pid)
                time.sleep(0.02)

    def members(self) -> list[int]:
        """PIDs, as the host sees them, of the processes in the cluster's PID namespace or directly in its network."""
        return [
            pid
            for pid in _all_pids()
            if _namespace(pid, "pid") == self._inner or _namespace(pid, "net") == self._network
        ]


@contextlib.contextmanager
def _pinned(pid: int, kind: str) -> Iterator[None]:
    """Keep a namespace, and so its number: a stranger's new one would get that of one that is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    except OSError:  # its holder ended before
        yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""  # it ended meanwhile


def _is_running(pid: int) -> bool:
    """Whether the process exists and is not just waiting for its parent (which may be ours) to take note of its end."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
