"""Pure: which command lines make a pod's namespaces and a container's view of the file system.

The chain of one container: `setpriv` (die with the agent) > `nsenter` (the pod's namespaces) > `unshare` (own
mounts) > `sh` (overlay mount) > `bwrap` (own process ids, /proc, /dev, volumes) > `setpriv` (user, capabilities) > the
container's command, which is process 1 of its PID namespace. That one lies inside the pod's PID namespace, whose first
process dies with the agent: so the kernel ends every process of a pod then, whatever its user and its parents are.
Knows no Kubernetes object and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

POD_NAMESPACES = ("--net", "--uts", "--ipc", "--mount")

# Sets the host name and the mounts that all containers of a pod share; then the pod's namespaces live as long as
# this process does. Ports below 1024 are free to everyone inside, as containerd has it.
PAUSE_SCRIPT = """set -e
hostname "$1"; shift
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
for target in "$@"; do mount -t tmpfs -o mode=1777 tmpfs "$target"; done
echo ready
exec sleep infinity
"""

CONTAINER_SCRIPT = """set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
shift
exec "$@"
"""

DEFAULT_CAPABILITIES = (
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "net_raw"),
    *("setfcap", "setgid", "setpcap", "setuid", "sys_chroot"),
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a container's processes are; `capabilities` holds lower-case names without `cap_`."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of this machine that the container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Everything that decides a container's process.

    Attributes:
        directory: holds `upper`, `work` and `root` for the overlay.
        mounts: in any order; shorter targets are mounted first.
    """

    directory: Path
    command: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    identity: Identity
    mounts: tuple[Mount, ...]
    read_only_root: bool


def pause_command(hostname: str, memory_mounts: Sequence[str]) -> list[str]:
    """Build the process that holds a pod's namespaces, for its child in them prints `ready` and sleeps."""
    unshare = ["unshare", *POD_NAMESPACES, "--pid", "--fork", "--kill-child", "--"]
    return [*die_with_parent(), *unshare, "sh", "-c", PAUSE_SCRIPT, "pause", hostname, *memory_mounts]


def container_command(plan: ContainerPlan, *, pause_pid: int, args_fd: int) -> list[str]:
    """Build a container's command line; bubblewrap's own arguments come from `args_fd`, out of sight of `ps`."""
    pid_namespace = f"--pid=/proc/{pause_pid}/ns/pid_for_children"
    enter = ["nsenter", "--target", str(pause_pid), *POD_NAMESPACES, pid_namespace, "--"]
    overlay = ["unshare", "--mount", "--", "sh", "-c", CONTAINER_SCRIPT, "overlay", str(plan.directory)]
    inside = [*identity_command(plan.identity), *plan.command]
    return [*die_with_parent(), *enter, *overlay, "bwrap", "--args", str(args_fd), "--", *inside]


def exec_command(command: Sequence[str], identity: Identity, *, pid: int) -> list[str]:
    """Build the command line that runs `command` inside a running container; `pid` is its first process."""
    target = ["nsenter", "--target", str(pid), *POD_NAMESPACES, "--pid", "--root", "--wd", "--"]
    return [*die_with_parent(), *target, *identity_command(identity), *command]


def bwrap_arguments(plan: ContainerPlan, *, status_fd: int) -> list[str]:
    """Build what `bwrap --args` reads."""
    arguments = ["--die-with-parent", "--unshare-pid", "--as-pid-1", "--json-status-fd", str(status_fd), "--clearenv"]
    arguments += [
        "--bind",
        str(plan.directory / "root"),
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--ro-bind",
        "/sys",
        "/sys",
    ]
    for mount in sorted(plan.mounts, key=lambda mount: mount.target.rstrip("/").count("/")):
        arguments += make_way(mount.target)
        arguments += ["--ro-bind" if mount.read_only else "--bind", mount.source, mount.target]
    arguments += [*make_way(plan.workdir), "--dir", plan.workdir]
    if plan.read_only_root:
        arguments += ["--remount-ro", "/"]
    arguments += ["--chdir", plan.workdir]
    for name, value in plan.env.items():
        arguments += ["--setenv", name, value]
    return arguments


def make_way(target: str) -> list[str]:
    """Make the parents of `target` where they are missing: bubblewrap alone would make them for root only."""
    parents = [str(parent) for parent in reversed(PurePosixPath(target).parents) if str(parent) != "/"]
    return [word for parent in parents for word in ("--dir", parent)]


def die_with_parent() -> list[str]:
    """Build the prefix that has the kernel kill a process when the agent's main thread ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--"]


def identity_command(identity: Identity) -> list[str]:
    """Build the prefix that becomes the container's user."""
    groups = ["--groups", ",".join(map(str, identity.groups))] if identity.groups else ["--clear-groups"]
    bounding = ",".join(["-all", *(f"+{name}" for name in identity.capabilities)])
    user = ["--reuid", str(identity.uid), "--regid", str(identity.gid), *groups]
    return ["setpriv", *user, "--bounding-set", bounding, "--inh-caps", "-all", "--nnp", "--"]
