"""Decide whether a group is ready and, if it is broken, why. Pure; `plan` and `status` share the answer.

mpi-operator's own `Running` is no help: it stays True when a worker dies, and a deleted worker pod comes back under
another UID with no rank in it. So a group is judged by its pods.

Ready and broken exclude each other, but a group on its way up or down is neither and is waited for. The answer is
worked out from what is there in every pass anew: the pass that sees a failure first only writes it down, and a later
one that still sees it acts. So a pass that was missed or cut short loses nothing.
"""

from __future__ import annotations

from lockstep_operator.api.status import MAX_MESSAGE, Failure, GroupStatus
from lockstep_operator.groups.state import Group, Pod
from lockstep_worker.contract import EXIT_HANG, exit_reason


def is_ready(group: Group) -> bool:
    """Launcher and all workers are Ready, of one revision, and none is being deleted."""
    launcher = group.launcher
    if launcher is None or group.deleting_since is not None or group.is_draining:
        return False
    pods = (launcher, *group.workers)
    whole = len(pods) == group.num_workers + 1
    return whole and all(pod.ready and not pod.deleting and pod.revision == group.revision for pod in pods)


def find_failure(group: Group, history: GroupStatus | None, now: str) -> Failure | None:
    """Find why a group is broken; None when it is not.

    A worker that ended comes before a launcher that ended, because the launcher's end follows from it; a worker that
    is only missing comes after, because mpi-operator removes workers when the launcher has ended.

    Args:
        group: the group.
        history: what the status remembers of the group's place.
        now: the time that the failure carries.
    """
    started = history.workers if history is not None and history.uid == group.uid else ()
    for worker in group.workers:  # a cause comes before what follows from it
        if worker.ended:
            return _blame_pod(group, worker, _name_ending(worker, "WorkerExited"), now)
    launcher = group.launcher
    if launcher is not None and launcher.ended:
        return _blame_pod(group, launcher, _name_ending(launcher, "LauncherExited"), now)
    if group.outcome:
        message = group.outcome_message or f"mpi-operator calls the job {group.outcome}"
        return Failure(reason=f"MPIJob{group.outcome}", time=now, uid=group.uid, message=message[:MAX_MESSAGE])
    return _find_lost_pod(group, started, now)


def _find_lost_pod(group: Group, started: tuple[str, ...], now: str) -> Failure | None:
    """Find a pod that is missing or was replaced; only after the start, until which mpi-operator still makes pods.

    The start is over as soon as there is a launcher or the status remembers workers: mpi-operator makes the launcher
    last, and the workers are remembered only together with it.
    """
    launcher = group.launcher
    if launcher is None and not started:
        return None  # not started yet: a worker may still come and go
    if launcher is None:
        return Failure(reason="LauncherLost", time=now, uid=group.uid, message="the launcher pod is gone")
    for pod in (*group.workers, launcher):
        if pod.deleting:
            return _blame_pod(group, pod, "PodDeleted", now)
    for worker in group.workers:
        if is_replacement(worker, launcher, started):
            return _blame_pod(group, worker, "WorkerReplaced", now)
    if len(group.workers) < group.num_workers:
        message = f"{len(group.workers)} of {group.num_workers} worker pods are left"
        return Failure(reason="WorkerLost", time=now, uid=group.uid, message=message)
    return None


def is_replacement(worker: Pod, launcher: Pod, started: tuple[str, ...]) -> bool:
    """Whether a worker pod came after the group's start.

    The status remembers the UIDs that the group started with. Before it does, the order of creation tells: the
    launcher is created only when all workers are Ready.
    """
    return worker.uid not in started if started else worker.created > launcher.created


def list_started_workers(group: Group, history: GroupStatus | None) -> tuple[str, ...]:
    """List the UIDs of the workers that the group started with; empty before its launcher exists."""
    if history is not None and history.uid == group.uid and history.workers:
        return history.workers
    if group.launcher is None or len(group.workers) != group.num_workers:
        return ()
    return tuple(pod.uid for pod in sorted(group.workers, key=lambda pod: pod.index))


def describe_wait(group: Group) -> str:
    """Say what a group that is not ready waits for."""
    if not group.accepted:
        return "waits for mpi-operator to accept the MPIJob"
    for pod in sorted(group.pods, key=lambda pod: pod.index):
        if pod.waiting:
            return f"pod {pod.name}: {pod.waiting}"[:MAX_MESSAGE]
    waiting = sorted(pod.name for pod in group.pods if not pod.ready)
    if len(group.workers) < group.num_workers:
        return f"waits for {group.num_workers - len(group.workers)} of {group.num_workers} worker pods to be created"
    if group.launcher is None:
        return "waits for worker pods to become Ready"
    return f"waits for pods to become Ready: {', '.join(waiting)}"[:MAX_MESSAGE]


def _name_ending(pod: Pod, exited: str) -> str:
    if pod.reason:
        return pod.reason
    if pod.ending is None or pod.ending.exit_code == 0:
        return exited
    return pod.ending.reason or exit_reason(pod.ending.exit_code)


def _blame_pod(group: Group, pod: Pod, reason: str, now: str) -> Failure:
    ending = pod.ending
    rank = ending.rank if ending is not None else None
    message = (ending.message if ending is not None else "") or pod.message or f"pod {pod.name}"
    return Failure(
        reason=reason,
        time=now,
        uid=group.uid,
        exit_code=ending.exit_code if ending is not None else None,
        rank=rank,
        node=_find_node(group, rank) or (None if _is_nobodys(group, pod) else pod.node),
        message=message[:MAX_MESSAGE],
    )


def _is_nobodys(group: Group, pod: Pod) -> bool:
    """Whether no node is to blame: a hang in which no rank stands out, in a group of several pods."""
    ending = pod.ending
    return bool(group.workers) and ending is not None and ending.exit_code == EXIT_HANG and ending.rank is None


def _find_node(group: Group, rank: int | None) -> str | None:
    """Find the node of a rank: the launcher holds the first `slots` ranks, the workers follow in their order."""
    if rank is None:
        return None
    pod_index = rank // group.slots
    return next((pod.node for pod in group.pods if pod.index == pod_index), None)
