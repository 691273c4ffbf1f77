"""Prepares the directories that stand for container images, by the Dockerfile's contract with the pods.

An image here is the machine's own system directories with a thin layer over them: accounts, homes, `/opt/lockstep`, and
empty directories that hide everything else (other people's files, the checkout, temporary files). What the programs
need from hidden places is listed to be bound, read-only, at its own path. Knows the contract, no pod.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from devcluster.paths import ROOT
from lockstep_worker import contract

SYSTEM = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "dev", "proc", "sys"})
"""The top-level directories that an image shares with the machine; all others are hidden."""
OPAQUE = "trusted.overlay.opaque"
PATH = f"{contract.IMAGE_ROOT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WORKER_IMAGE = "lockstep-worker:dev"
OPERATOR_IMAGE = "lockstep-operator:dev"


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """One image as the node agent reads it; the fields are those of `devcluster.agent.images.Image`."""

    layers: list[str]
    binds: list[str]
    entrypoint: list[str] = field(default_factory=list)
    user: int = contract.USER_ID
    workdir: str = contract.USER_HOME
    env: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "PYTHONSAFEPATH": "1"})


def prepare_images(state_dir: Path, checkout: Path = ROOT) -> Path:
    """Write the layer and the list of images below `state_dir`, anew.

    Returns:
        The JSON file that the node agent takes as `--images`.
    """
    layer = state_dir / "images" / "base"
    shutil.rmtree(layer, ignore_errors=True)
    binds = bound_paths(checkout)
    _build_layer(layer, checkout, binds)
    layers, paths = [str(layer)], [str(path) for path in binds]
    program = f"{contract.IMAGE_ROOT}/bin"
    images = {
        WORKER_IMAGE: ImageEntry(layers, paths, entrypoint=[f"{program}/lockstep-worker"]),
        OPERATOR_IMAGE: ImageEntry(layers, paths, entrypoint=[f"{program}/lockstep-operator"]),
        "*": ImageEntry(layers, paths, user=0, workdir="/"),
    }
    target = state_dir / "images" / "images.json"
    target.write_text(json.dumps({name: asdict(image) for name, image in images.items()}, indent=2))
    return target


def bound_paths(checkout: Path) -> list[Path]:
    """List what of hidden directories the programs of the images need, links' targets included."""
    wanted = [*(checkout / name for name in (".venv", "operator", "worker", "models")), Path(sys.base_prefix)]
    return [path for path in dict.fromkeys([*wanted, *(path.resolve() for path in wanted)]) if is_hidden(path)]


def is_hidden(path: Path) -> bool:
    """Say whether a path lies outside the directories that images share with the machine."""
    return path.parts[1] not in SYSTEM


def _build_layer(layer: Path, checkout: Path, binds: list[Path]) -> None:
    for entry in [path.name for path in Path("/").iterdir() if path.is_dir() and not path.is_symlink()]:
        if entry not in SYSTEM:
            _make_directory(layer / entry, hide=True)
    for path in binds:
        _make_parents(layer, path)
    for name in ("tmp", "var/tmp"):
        _make_directory(layer / name, hide=True, mode=0o1777)
    _make_directory(layer / "run/sshd")
    _write_accounts(layer)
    _make_parents(layer, Path(contract.BUNDLED_MODEL))
    # All of the environment, so that Python finds its `pyvenv.cfg` and library when started from there.
    for part in (checkout / ".venv").iterdir():
        Path(layer, contract.IMAGE_ROOT.lstrip("/"), part.name).symlink_to(part)
    Path(layer, contract.BUNDLED_MODEL.lstrip("/")).symlink_to(checkout / "models" / "recall")


def _write_accounts(layer: Path) -> None:
    """Write the accounts of the image, root's and the one that pods run as, and their homes."""
    name, uid, home = contract.USER_NAME, contract.USER_ID, contract.USER_HOME
    _make_directory(layer / "root", hide=True, mode=0o755)
    _make_directory(layer / "etc")
    system = (
        "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    accounts = f"root:x:0:0:root:/root:/bin/bash\n{system}{name}:x:{uid}:{uid}:{name}:{home}:/bin/bash\n"
    (layer / "etc/passwd").write_text(accounts)
    (layer / "etc/group").write_text(f"root:x:0:\nnogroup:x:65534:\n{name}:x:{uid}:\n")
    (layer / "etc/shadow").write_text(f"root:*:20000::::::\n{name}:*:20000::::::\n")
    (layer / "etc/shadow").chmod(0o600)
    _make_directory(layer / home.lstrip("/"))
    os.chown(layer / home.lstrip("/"), uid, uid)


def _make_parents(layer: Path, path: Path) -> None:
    """Make the way to `path` passable for every user."""
    for parent in reversed(path.parents):
        if parent != Path("/"):
            _make_directory(layer / str(parent).lstrip("/"))


def _make_directory(path: Path, *, hide: bool = False, mode: int = 0o755) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if hide:
        os.setxattr(path, OPAQUE, b"y")
