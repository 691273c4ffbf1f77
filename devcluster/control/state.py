"""The folder of one cluster: who owns it, and what a second process needs to reach the cluster in it."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.filelock import hold
from devcluster.network.netns import Namespaces

_LOCK = "lock"
_RUNNING = "cluster.json"


@dataclass(frozen=True)
class RunningCluster:
    """Where a running cluster is reached; what `devcluster shell` needs to enter it."""

    holder_pid: int
    inner_pid: int
    path: str

    def write(self, folder: Path) -> None:
        """Saves it in the cluster's folder."""
        (folder / _RUNNING).write_text(json.dumps(asdict(self)))


def claim(folder: Path) -> int:
    """Takes the folder for this process and clears what a dead owner left; returns the lock's descriptor.

    Raises:
        DevclusterError: a living process runs a cluster in this folder.
    """
    descriptor = hold(folder / _LOCK)
    if descriptor is None:
        raise DevclusterError(f"a cluster is running in {folder} already")
    cluster = read_running(folder)
    if cluster is not None and _is_holder(cluster.holder_pid, folder):  # its owner died this very moment
        Namespaces(cluster.holder_pid, cluster.inner_pid).destroy()
    for entry in folder.iterdir():
        if entry.name != _LOCK:  # a new file of that name could be locked by a second owner
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return descriptor


def release(folder: Path, descriptor: int) -> None:
    """Gives the folder back; logs stay for reading, keys do not."""
    (folder / _RUNNING).unlink(missing_ok=True)
    for name in ("pki", "etcd"):
        shutil.rmtree(folder / name, ignore_errors=True)
    os.close(descriptor)


def read_running(folder: Path) -> RunningCluster | None:
    """What the folder says about its cluster, or None when it says nothing; its owner may have died since."""
    try:
        return RunningCluster(**json.loads((folder / _RUNNING).read_text()))
    except FileNotFoundError:
        return None


def running(folder: Path) -> RunningCluster:
    """Where to reach the cluster that runs in `folder` now.

    Raises:
        DevclusterError: no cluster runs in `folder`.
    """
    cluster = read_running(folder)
    if cluster is None or not _is_holder(cluster.holder_pid, folder):
        raise DevclusterError(f"no cluster is running in {folder}; `python -m devcluster up` starts one")
    return cluster


def _is_holder(pid: int, folder: Path) -> bool:
    """Whether that PID is still the holder of this folder's cluster, and not a later process of the same number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return "devcluster.network.holder" in command and str(folder) in command
