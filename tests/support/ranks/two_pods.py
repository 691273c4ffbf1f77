"""Two "pods" on this machine: each with its own network, host name, IPC and mounts; the one link has no uplink.

Open MPI takes two pods with one host name for one node, so the separate names are needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lockstep_worker.config import Config

TOOLS = ("ip", "unshare", "mount", "ssh", "ssh-keygen")
NAMES = ("job-launcher", "job-worker-0")
_ENTER = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2" /etc/hosts
shift 2
exec "$@"
"""
_SSHD = """
import sys
from pathlib import Path
from lockstep_worker.supervisor.sshd import run_sshd
run_sshd(ssh_dir=Path(sys.argv[1]))
"""
_SUPERVISOR = """
import dataclasses, os, sys
from pathlib import Path
from lockstep_worker.config import Config
from lockstep_worker.supervisor.supervise import look_around, supervise
around = dataclasses.replace(look_around(os.environ), hostfile=Path(sys.argv[2]), ssh_dir=Path(sys.argv[3]))
sys.exit(supervise(Config.from_json(sys.argv[1]), os.environ, around=around, rank_module=sys.argv[4]))
"""
_MPI_OPERATORS_SETTINGS = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "OMPI_MCA_orte_set_default_slots": "1",
}


def can_make_pods() -> bool:
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in TOOLS)


class Pods:
    """Makes the two on entry and takes them down on exit."""

    def __init__(self, directory: Path) -> None:
        self._mark = f"ls{os.getpid()}"
        self._namespaces = [f"{self._mark}-{number}" for number in range(len(NAMES))]
        self.hosts_file, self.hostfile, self.ssh_dir = directory / "hosts", directory / "hostfile", directory / "ssh"

    def __enter__(self) -> Pods:
        first, second = self._namespaces
        for namespace in self._namespaces:
            _ip("netns", "add", namespace)
        _ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for number, namespace in enumerate(self._namespaces, start=1):
            _ip("-n", namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", namespace, "link", "set", link, "up")
        self._write_files()
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in self._namespaces:
            _ip("netns", "del", namespace)

    def _write_files(self) -> None:
        lines = ["127.0.0.1 localhost"]
        lines += [f"10.77.0.{number} {name}.job.ns.svc {name}" for number, name in enumerate(NAMES, start=1)]
        self.hosts_file.write_text("\n".join(lines) + "\n")
        self.hostfile.write_text("".join(f"{name}.job.ns.svc slots=1\n" for name in NAMES))
        self.ssh_dir.mkdir()
        key = self.ssh_dir / "id_rsa"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        shutil.copy(key.with_suffix(".pub"), self.ssh_dir / "authorized_keys")

    def start(self, number: int, command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
        enter = ["ip", "netns", "exec", self._namespaces[number], "unshare", "--uts", "--ipc", "--mount"]
        inside = ["sh", "-c", _ENTER, "sh", NAMES[number], str(self.hosts_file), *command]
        return subprocess.Popen(
            [*enter, *inside], env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )


@contextlib.contextmanager
def open_pods(directory: Path) -> Iterator[Pods]:
    """Both pods, with `lockstep-worker sshd` in the second."""
    environ = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": os.environ["HOME"], "TMPDIR": str(directory)}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    with Pods(directory) as pods:
        sshd = pods.start(1, [sys.executable, "-c", _SSHD, str(pods.ssh_dir)], environ)
        yield pods
        sshd.terminate()
        sshd.communicate(timeout=60)


def supervise(pods: Pods, config: Config, *, rank_module: str) -> subprocess.Popen[str]:
    """The supervisor in the first pod, as in an MPIJob's launcher."""
    command = [sys.executable, "-c", _SUPERVISOR, config.to_json(), str(pods.hostfile), str(pods.ssh_dir), rank_module]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, **_MPI_OPERATORS_SETTINGS, "PYTHONPATH": path}
    environ.pop("OMP_NUM_THREADS", None)
    return pods.start(0, command, environ)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
