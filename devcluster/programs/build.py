"""Finds the servers of the control plane or builds them, once, from the pinned Go modules beside this file.

A build goes into a folder whose name is a hash of everything that decides its content; it is written beside and renamed
when whole, under a lock, so that neither a second process nor an interrupted build leaves a half-filled folder.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from devcluster.errors import ToolError
from devcluster.filelock import exclusive
from devcluster.paths import CACHE, GO_MODULES
from devcluster.progress import Progress, Stopwatch, minutes

GO_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-trimpath -mod=readonly -buildvcs=false",
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
}
GCFLAGS = "all=-N -l"
"""No optimiser: it takes a quarter of the compile time, and these servers have little to do."""

REPORT_EVERY_S = 15.0
MINIMUM_GO = (1, 26)
MPI_OPERATOR_SOURCE = "github.com/kubeflow/mpi-operator"


@dataclass(frozen=True)
class GoModule:
    """A folder with go.mod and go.sum, and the programs that it builds (name to import path)."""

    folder: Path
    packages: Mapping[str, str]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name


CONTROL_PLANE = GoModule(
    GO_MODULES / "controlplane",
    {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    },
)
MPI_OPERATOR = GoModule(
    GO_MODULES / "mpi-operator", {"mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"}
)


def find_control_plane(progress: Progress) -> dict[str, Path]:
    """The programs of the control plane: from KUBEBUILDER_ASSETS, PATH or the cache, else built now.

    Raises:
        ToolError: Go is missing or too old, or a build fails.
    """
    found = {name: path for name in CONTROL_PLANE.packages if (path := _installed(name, progress))}
    missing = [name for name in CONTROL_PLANE.packages if name not in found]
    if missing:
        folder = built(CONTROL_PLANE, progress)
        found.update({name: folder / name for name in missing})
    return found


def find_mpi_operator(progress: Progress) -> tuple[Path, Path]:
    """The mpi-operator program and the folder of its manifests (CRD, RBAC), of exactly the pinned version."""
    folder = built(MPI_OPERATOR, progress)
    return folder / "mpi-operator", folder / "manifests"


def kubernetes_version() -> str:
    """The pinned version of Kubernetes, for example `v1.36.3`."""
    return _pinned(CONTROL_PLANE, "k8s.io/kubernetes")


def built(module: GoModule, progress: Progress, cache: Path = CACHE) -> Path:
    """The folder in `cache` with the module's programs; builds them if no earlier build fits."""
    go = _go()
    folder = cache / f"bin-{module.name}-{_key(module, go)}"
    if folder.is_dir():
        return folder
    with exclusive(cache / f"build-{module.name}.lock", f"waiting for another build of {module.name}", progress):
        if not folder.is_dir():
            _build_into(folder, module, go, progress)
    return folder


def _build_into(folder: Path, module: GoModule, go: str, progress: Progress) -> None:
    for stale in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)  # only an interrupted build leaves one: the lock is ours
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    _compile(temporary, module, go, progress)
    for name, package in module.packages.items():
        binary = temporary / _binary_name(package)
        binary.rename(temporary / name)
    if module is MPI_OPERATOR:
        shutil.copytree(_source_folder(go) / "manifests" / "base", temporary / "manifests")
    temporary.chmod(0o755)
    temporary.rename(folder)


def _compile(target: Path, module: GoModule, go: str, progress: Progress) -> None:
    progress(f"building {', '.join(module.packages)} from Go source, once; this takes minutes, up to 10 on 2 cores")
    command = [go, "build", "-v", f"-gcflags={GCFLAGS}", "-ldflags", _ldflags(module), "-o", f"{target}/"]
    watch = Stopwatch()
    process = subprocess.Popen(
        [*command, *module.packages.values()],
        cwd=module.folder,
        env={**os.environ, **GO_ENVIRONMENT},
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    lines = _follow(process, watch, progress)
    if process.returncode != 0:
        tail = "\n".join(lines[-20:])
        raise ToolError(f"go build of {module.name} failed with exit code {process.returncode}:\n{tail}")
    progress(f"built {module.name} in {minutes(watch.seconds)}")


def _follow(process: subprocess.Popen[str], watch: Stopwatch, progress: Progress) -> list[str]:
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=_collect, args=(process.stderr, lines), daemon=True)
    reader.start()
    while True:
        reader.join(REPORT_EVERY_S)
        if not reader.is_alive():
            process.wait()
            return lines
        progress(f"  {minutes(watch.seconds)}: {_state(lines)}")


def _collect(stream: IO[str], lines: list[str]) -> None:
    lines.extend(line.rstrip() for line in iter(stream.readline, ""))


def _state(lines: list[str]) -> str:
    downloads = sum(line.startswith("go: downloading") for line in lines)
    return f"{downloads} modules downloaded, {len(lines) - downloads} packages compiled"


def _installed(name: str, progress: Progress) -> Path | None:
    wanted = kubernetes_version() if name != "etcd" else _pinned(CONTROL_PLANE, "go.etcd.io/etcd/server/v3")
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in filter(None, [assets, *os.environ.get("PATH", "").split(os.pathsep)]):
        path = Path(folder) / name
        if not os.access(path, os.X_OK) or not path.is_file():
            continue
        version = _reported_version(path)
        if _minor(version) == _minor(wanted):
            return path
        progress(f"not using {path}: it reports version {version or 'none'}, wanted is {wanted}")
    return None


def _reported_version(program: Path) -> str:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"v?\d+\.\d+\.\d+\S*", answer.stdout)
    return match.group() if match else ""


def _minor(version: str) -> list[str]:
    return version.removeprefix("v").split(".")[:2]


def _pinned(module: GoModule, path: str) -> str:
    text = (module.folder / "go.mod").read_text()
    match = re.search(rf"^\s+{re.escape(path)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise ToolError(f"{module.folder / 'go.mod'} does not require {path}")
    return match.group(1)


def _ldflags(module: GoModule) -> str:
    if module is not CONTROL_PLANE:
        return "-s -w"
    version = kubernetes_version()
    major, minor = _minor(version)
    stamp = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    # An unstamped server says v0.0.0-master, which breaks Helm's kubeVersion checks.
    values = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items()]
    return " ".join(["-s", "-w", *values])


def _key(module: GoModule, go: str) -> str:
    version = subprocess.run([go, "version"], capture_output=True, text=True, check=True).stdout
    parts = [(module.folder / name).read_text() for name in ("go.mod", "go.sum")]
    parts += [version, GCFLAGS, _ldflags(module), json.dumps(GO_ENVIRONMENT)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _go() -> str:
    go = shutil.which("go")
    needed = ".".join(map(str, MINIMUM_GO))
    if go is None:
        raise ToolError(f"go is not on PATH; Go {needed} or newer builds the control plane")
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    match = re.match(r"go(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < MINIMUM_GO:
        raise ToolError(f"{go} is {version}; Go {needed} or newer is needed")
    return go


def _source_folder(go: str) -> Path:
    answer = subprocess.run(
        [go, "mod", "download", "-json", MPI_OPERATOR_SOURCE],
        cwd=MPI_OPERATOR.folder,
        env={**os.environ, **GO_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        raise ToolError(f"go mod download {MPI_OPERATOR_SOURCE} failed: {answer.stdout}{answer.stderr}")
    return Path(json.loads(answer.stdout)["Dir"])


def _binary_name(package: str) -> str:
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]
