"""The folder of one cluster: who owns it, and what a second process needs to reach the cluster in it."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.filelock import hold
from devcluster.netns import Namespaces

_LOCK = "lock"
_RECORD = "cluster.json"


@dataclass(frozen=True)
class Record:
    """What `devcluster shell` needs of a running cluster."""

    holder_pid: int
    inner_pid: int
    path: str

    def write(self, folder: Path) -> None:
        """Saves it in the cluster's folder."""
        (folder / _RECORD).write_text(json.dumps(asdict(self)))


def claim(folder: Path) -> int:
    """Takes the folder for this process and clears what a dead owner left; returns the lock's descriptor.

    Raises:
        DevclusterError: a living process runs a cluster in this folder.
    """
    descriptor = hold(folder / _LOCK)
    if descriptor is None:
        raise DevclusterError(f"a cluster is running in {folder} already")
    record = read_record(folder)
    if record is not None and _is_holder(record.holder_pid, folder):  # its owner died this very moment
        Namespaces(record.holder_pid, record.inner_pid).destroy()
    for entry in folder.iterdir():
        if entry.name != _LOCK:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return descriptor


def release(folder: Path, descriptor: int) -> None:
    """Gives the folder back; logs stay for reading, keys do not."""
    (folder / _RECORD).unlink(missing_ok=True)
    for name in ("pki", "etcd"):
        shutil.rmtree(folder / name, ignore_errors=True)
    os.close(descriptor)


def read_record(folder: Path) -> Record | None:
    """The record of the cluster in `folder`, or None when there is none."""
    try:
        return Record(**json.loads((folder / _RECORD).read_text()))
    except FileNotFoundError:
        return None


def running(folder: Path) -> Record:
    """The record of a cluster that runs now.

    Raises:
        DevclusterError: no cluster runs in `folder`.
    """
    record = read_record(folder)
    if record is None or not _is_holder(record.holder_pid, folder):
        raise DevclusterError(f"no cluster is running in {folder}; `python -m devcluster up` starts one")
    return record


def _is_holder(pid: int, folder: Path) -> bool:
    """Whether that PID is still the holder of this folder's cluster, and not a later process of the same number."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return "devcluster.holder" in command and str(folder) in command
