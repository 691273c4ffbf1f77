"""Two "pods" on this machine: each with its own network, host name, IPC and mounts; the one link has no uplink.

Open MPI takes two pods with one host name for one node, so the separate names are needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

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


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
