"""Pure: what containers have done -> what the pod's status says. No clock, no client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devcluster.kube.objects import Object


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running now: not yet made, or between two tries."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Its first process runs since `started_at`."""

    started_at: str


@dataclass(frozen=True, slots=True)
class Terminated:
    """Its first process ended; `message` is what it wrote into its termination log."""

    exit_code: int
    reason: str
    message: str
    started_at: str
    finished_at: str
    container_id: str


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container as its pod's status shows it."""

    name: str
    image: str
    state: Waiting | Running | Terminated = Waiting()
    last: Terminated | None = None
    container_id: str = ""
    restarts: int = 0
    started: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class PodView:
    """Everything that decides a pod's status.

    Attributes:
        ended: no container will run any more.
        failure: (reason, message) when the pod failed for a reason outside its containers.
    """

    restart_policy: str
    init: tuple[ContainerStatus, ...]
    main: tuple[ContainerStatus, ...]
    generation: int
    host_ip: str
    start_time: str
    pod_ip: str = ""
    sandboxed: bool = False
    ended: bool = False
    failure: tuple[str, str] | None = None


def pod_phase(view: PodView) -> str:
    """Name the pod's phase, by the kubelet's rules."""
    if view.failure:
        return "Failed"
    succeeded = all(_exit_code(container) == 0 for container in view.main)
    if view.ended:
        return "Succeeded" if succeeded and _initialized(view) else "Failed"
    if not _initialized(view) or any(isinstance(r.state, Waiting) and r.last is None for r in view.main):
        return "Pending"
    return "Running"


def should_restart(policy: str, exit_code: int) -> bool:
    """Say whether a container that ended is started again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def restart_delay_s(restarts: int) -> float:
    """Return the wait before restart number `restarts + 1`: none at first, then 10 s doubling up to 5 minutes."""
    return 0.0 if restarts == 0 else float(min(10 * 2 ** (restarts - 1), 300))


def build_pod_status(view: PodView, previous: Sequence[Mapping[str, str]], now: str) -> Object:
    """Build the status to patch; `previous` holds the conditions that keep their transition times."""
    status: Object = {
        "phase": pod_phase(view),
        "observedGeneration": view.generation,
        "hostIP": view.host_ip,
        "hostIPs": [{"ip": view.host_ip}],
        "startTime": view.start_time,
        "conditions": _conditions(view, previous, now),
        "containerStatuses": [_container_status(container) for container in view.main],
    }
    if view.init:
        status["initContainerStatuses"] = [_container_status(container) for container in view.init]
    if view.pod_ip:
        status |= {"podIP": view.pod_ip, "podIPs": [{"ip": view.pod_ip}]}
    if view.failure:
        status |= {"reason": view.failure[0], "message": view.failure[1]}
    return status


def _conditions(view: PodView, previous: Sequence[Mapping[str, str]], now: str) -> list[Object]:
    before = {condition["type"]: condition for condition in previous}
    return [_condition(view, before, now, *wanted) for wanted in _wanted_conditions(view)]


def _wanted_conditions(view: PodView) -> list[tuple[str, bool, str, str]]:
    """List (type, status, reason, message)."""
    unready = [container.name for container in view.main if not container.ready]
    ready = not unready and not view.ended and _initialized(view)
    uninitialized = [container.name for container in view.init if _exit_code(container) != 0]
    why, words = "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    if pod_phase(view) == "Succeeded":
        why, words = "PodCompleted", ""
    elif pod_phase(view) == "Failed":
        why, words = "PodFailed", ""
    init_words = f"containers with incomplete status: [{' '.join(uninitialized)}]"
    return [
        ("PodReadyToStartContainers", view.sandboxed, "", ""),
        _unless(not uninitialized, "Initialized", "ContainersNotInitialized", init_words),
        _unless(ready, "ContainersReady", why, words),
        _unless(ready, "Ready", why, words),
    ]


def _unless(value: bool, kind: str, reason: str, message: str) -> tuple[str, bool, str, str]:
    """Give a condition its reason only while it is not true."""
    return (kind, True, "", "") if value else (kind, False, reason, message)


def _condition(
    view: PodView, before: Mapping[str, Mapping[str, str]], now: str, kind: str, value: bool, reason: str, message: str
) -> Object:
    status = "True" if value else "False"
    old = before.get(kind, {})
    since = old.get("lastTransitionTime", now) if old.get("status") == status else now
    # A patch merges conditions by type: an old reason only goes when an empty one takes its place.
    words: Object = {"reason": reason, "message": message}
    return {"type": kind, "status": status, "lastTransitionTime": since, "observedGeneration": view.generation, **words}


def _container_status(container: ContainerStatus) -> Object:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": container.image,
        "containerID": container.container_id,
        "restartCount": container.restarts,
        "started": container.started,
        "ready": container.ready,
        "state": _state(container.state),
        "lastState": _state(container.last) if container.last else {},
    }


def _state(state: Waiting | Running | Terminated) -> Object:
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason, "message": state.message}}
    if isinstance(state, Running):
        return {"running": {"startedAt": state.started_at}}
    ended = {"exitCode": state.exit_code, "reason": state.reason, "message": state.message}
    times = {"startedAt": state.started_at or None, "finishedAt": state.finished_at, "containerID": state.container_id}
    return {"terminated": ended | times}


def _initialized(view: PodView) -> bool:
    return all(_exit_code(container) == 0 for container in view.init)


def _exit_code(container: ContainerStatus) -> int | None:
    return container.state.exit_code if isinstance(container.state, Terminated) else None
