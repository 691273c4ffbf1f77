"""A pod's volumes as directories of this machine; a reader never sees half a file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from devcluster.agent.decisions.volumes import File


def make_volume(directory: Path, group: int | None) -> None:
    """Make an empty volume that every user of the pod may write to."""
    directory.mkdir(parents=True, exist_ok=True)
    if group is None:
        directory.chmod(0o777)
    else:
        os.chown(directory, 0, group)
        directory.chmod(0o2777)


def write_volume(directory: Path, files: Iterable[File], group: int | None) -> None:
    """Bring a filled volume up to date; a reader sees each file whole, old or new."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    wanted = {file.path: file for file in files}
    for file in wanted.values():
        _replace(directory / file.path, file, group)
    for present in [path for path in directory.rglob("*") if path.is_file()]:
        if str(present.relative_to(directory)) not in wanted:
            present.unlink()


def _replace(path: Path, file: File, group: int | None) -> None:
    mode = file.mode if group is None else file.mode | 0o440
    if path.exists() and path.read_bytes() == file.data and path.stat().st_mode & 0o7777 == mode:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        target.write(file.data)
    if group is not None:
        os.chown(fresh, 0, group)
    fresh.chmod(mode)
    fresh.rename(path)
