"""What one container's process gets: joins image, security, environment and mounts into a `ContainerPlan`.

The decisions are pure; `prepare_directories` then makes what the plan needs on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from devcluster.agent.decisions import volumes
from devcluster.agent.decisions.environment import Surroundings, build_command, build_environment
from devcluster.agent.decisions.sandbox import ContainerPlan, Mount
from devcluster.agent.decisions.security import container_identity, has_read_only_root
from devcluster.agent.decisions.volumes import container_mounts
from devcluster.agent.images import Image, copy_layers
from devcluster.kube.objects import Object

DEFAULT_MESSAGE_PATH = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class PodFiles:
    """Where a pod keeps what on this machine."""

    root: Path

    @property
    def etc(self) -> Path:
        """Its hosts, hostname and resolv.conf."""
        return self.root / "etc"

    @property
    def volumes(self) -> Path:
        """One directory per volume."""
        return self.root / "volumes"

    @property
    def shm(self) -> Path:
        """What all its containers see as /dev/shm."""
        return self.root / "shm"

    def container(self, name: str, run: int) -> Path:
        """The directory of one run of one container."""
        return self.root / "containers" / f"{name}-{run}"

    def memory_mounts(self, pod: Object) -> list[str]:
        """List the directories that are tmpfs in the pod's mount namespace."""
        every = pod["spec"].get("volumes", [])
        return [str(self.shm), *(str(self.volumes / volume["name"]) for volume in every if volumes.is_memory(volume))]


def build_plan(container: Object, around: Surroundings, image: Image, files: PodFiles, run: int) -> ContainerPlan:
    """Decide everything about a container's process.

    Raises:
        ConfigError: the container asks for something that does not exist.
    """
    pod = around.pod
    identity = container_identity(pod, container, image)
    env = build_environment(container, around, image.env)
    env.setdefault("HOME", image.home_of(identity.uid))
    env.setdefault("HOSTNAME", (files.etc / "hostname").read_text().strip())
    directory = files.container(container["name"], run)
    mounts = [*_own_mounts(container, files, directory), *container_mounts(container, pod, files.volumes, env)]
    return ContainerPlan(
        directory=directory,
        command=build_command(container, image.entrypoint, env),
        env=env,
        workdir=container.get("workingDir") or image.workdir,
        identity=identity,
        mounts=(*_image_mounts(image), *map(_resolve_target, mounts)),
        read_only_root=has_read_only_root(container),
    )


def _image_mounts(image: Image) -> Iterator[Mount]:
    """List the image's bound paths, each at its own place, be it a link."""
    return (Mount(path, path, read_only=True) for path in image.binds if Path(path).exists())


def _resolve_target(mount: Mount) -> Mount:
    """Follow links such as /var/run in a mount's target: bubblewrap would follow them out of the container's root."""
    return Mount(mount.source, os.path.realpath(mount.target), mount.read_only)


def _own_mounts(container: Object, files: PodFiles, directory: Path) -> Iterator[Mount]:
    """List what every container has besides its image and volumes."""
    yield Mount(str(files.shm), "/dev/shm")
    yield from (Mount(str(files.etc / name), f"/etc/{name}") for name in ("hosts", "hostname", "resolv.conf"))
    message_path = container.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH
    yield Mount(str(message_file(directory)), message_path)


def message_file(directory: Path) -> Path:
    """Where a run's termination message is on this machine."""
    return directory / "termination-log"


def prepare_directories(plan: ContainerPlan, image: Image, files: PodFiles, group: int | None) -> None:
    """Make the directories of one run: the overlay with the image's layers, the message file, sub-paths of volumes."""
    for name in ("upper", "work", "root"):
        (plan.directory / name).mkdir(parents=True)
    copy_layers(image, plan.directory / "upper")
    message = message_file(plan.directory)
    message.touch()
    message.chmod(0o666)
    for mount in plan.mounts:
        source = Path(mount.source)
        if files.volumes in source.parents and source.parent != files.volumes and not source.exists():
            source.mkdir(parents=True)
            source.chmod(0o777 if group is None else 0o2777)
            os.chown(source, 0, group if group is not None else -1)


def read_message(container: Object, directory: Path, log_tail: str, exit_code: int) -> str:
    """Read what a container left as its last words, by its `terminationMessagePolicy`; at most 4096 bytes."""
    message = message_file(directory).read_bytes()[:4096].decode(errors="replace")
    falls_back = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    return message or (log_tail if falls_back and exit_code else "")
