"""What an image is to this agent: directories to lay over the machine's own root, and defaults for the process.

Reads the file that `devcluster.nodes.images` wrote; `"*"` stands for every reference that it does not name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPAQUE = "trusted.overlay.opaque"
"""The attribute that makes a directory of a layer hide the one below."""
ANY = "*"


@dataclass(frozen=True, slots=True)
class Image:
    """One image.

    Attributes:
        layers: directories that are copied, in this order, over the machine's root.
        binds: paths of this machine that stay visible, read-only, where a layer hides their parents.
        user: the uid of processes where the pod does not say one.
    """

    layers: tuple[Path, ...]
    binds: tuple[str, ...]
    env: dict[str, str]
    entrypoint: tuple[str, ...]
    user: int
    workdir: str

    def group_of(self, uid: int) -> int:
        """Return the user's own group as /etc/passwd has it, or 0."""
        entry = self._account(uid)
        return int(entry[3]) if entry else 0

    def home_of(self, uid: int) -> str:
        """Return the user's home as /etc/passwd has it, or the root."""
        entry = self._account(uid)
        return entry[5] if entry else "/"

    def _account(self, uid: int) -> list[str] | None:
        for layer in reversed(self.layers):
            accounts = layer / "etc/passwd"
            if accounts.exists():
                lines = (line.split(":") for line in accounts.read_text().splitlines())
                return next((entry for entry in lines if entry[2] == str(uid)), None)
        return None


def load_images(path: Path) -> dict[str, Image]:
    """Read the file of all images."""
    return {reference: _image(entry) for reference, entry in json.loads(path.read_text()).items()}


def find_image(images: Mapping[str, Image], reference: str) -> Image:
    """Return the image of a reference, or the one for all others."""
    return images.get(reference) or images[ANY]


def copy_layers(image: Image, upper: Path) -> None:
    """Fill a container's writable directory with the image's layers.

    They cannot be overlay layers below it: the kernel refuses a layer that lies inside another one, and all of them
    lie inside the machine's root. They are small, so that a copy is cheap.
    """
    for layer in image.layers:
        shutil.copytree(layer, upper, symlinks=True, dirs_exist_ok=True)
        for directory, names, files in os.walk(layer):
            for path in [Path(directory), *(Path(directory, name) for name in [*names, *files])]:
                _copy_owner(path, upper / path.relative_to(layer))


def _copy_owner(source: Path, target: Path) -> None:
    """Copy what copytree leaves out: the owner, and whether a directory hides the one below."""
    status = source.lstat()
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not source.is_symlink() and OPAQUE in os.listxattr(source):
        os.setxattr(target, OPAQUE, b"y")


def _image(entry: dict[str, Any]) -> Image:
    return Image(
        layers=tuple(map(Path, entry["layers"])),
        binds=tuple(entry["binds"]),
        env=entry["env"],
        entrypoint=tuple(entry["entrypoint"]),
        user=entry["user"],
        workdir=entry["workdir"],
    )
