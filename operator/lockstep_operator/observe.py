"""Read one deployment and all that belongs to it, live from the API server, into one frozen picture.

What does not belong to it (no owner reference with its UID, or another deployment's label) is not in the picture at
all.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

from lockstep_operator import names
from lockstep_operator.api.spec import Spec, parse_deployment
from lockstep_operator.api.status import MAX_MESSAGE, parse_time, read_status
from lockstep_operator.children.child import Child
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.owner import is_owned
from lockstep_operator.clients.kube import Kube
from lockstep_operator.clients.launcher import Launchers
from lockstep_operator.errors import NotFound, SpecError
from lockstep_operator.groups.state import Ending, Group, Leftover, Observed, Pod
from lockstep_operator.kinds import PODS, Kind, Object, read_label


def observe(kube: Kube, launchers: Launchers, deployment: Object, children: tuple[Child, ...]) -> Observed:
    """Read what there is around a deployment that was just read."""
    metadata = deployment["metadata"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    kinds = dict.fromkeys((MPIJOB.kind, *(child.kind for child in children)))
    found = {kind: _list_owned(kube, kind, namespace, name, uid) for kind in kinds}
    pods = kube.list(PODS, namespace, names.build_selector(name))
    groups = [_read_drain(launchers, read_group(job, pods)) for job in found[MPIJOB.kind] or ()]
    spec, problems = _read_spec(deployment)
    return Observed(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=metadata.get("generation", 0),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers", [])),
        resource_version=metadata["resourceVersion"],
        spec=spec,
        problems=problems,
        before=read_status(deployment.get("status")),
        unserved=tuple(kind for kind, items in found.items() if items is None),
        groups=tuple(sorted(groups, key=lambda group: group.name)),
        leftovers=_list_leftovers(pods, {group.name for group in groups}),
        children={child.kind: found[child.kind] or () for child in children if child.list_wanted is not None},
    )


def _list_owned(kube: Kube, kind: Kind, namespace: str, deployment: str, uid: str) -> tuple[Object, ...] | None:
    """List a deployment's own objects of a kind; None when its API is not served, which no core API ever is."""
    try:
        found = kube.list(kind, namespace, names.build_selector(deployment))
    except NotFound:
        if kind.is_core:
            raise
        return None
    return tuple(item for item in found if is_owned(item, uid))


def read_group(job: Object, pods: list[Object]) -> Group:
    """Read an MPIJob and those of the pods that are its own."""
    metadata, labels = job["metadata"], job["metadata"].get("labels", {})
    conditions = {
        item["type"]: item for item in job.get("status", {}).get("conditions", []) if item["status"] == "True"
    }
    outcome = next((kind for kind in ("Failed", "Succeeded") if kind in conditions), "")
    deleted = metadata.get("deletionTimestamp")
    return Group(
        name=metadata["name"],
        uid=metadata["uid"],
        role=labels.get(names.LABEL_ROLE, ""),
        index=int(labels.get(names.LABEL_INDEX, "0")),
        revision=labels.get(names.LABEL_REVISION, ""),
        created=parse_time(metadata["creationTimestamp"]),
        num_workers=job["spec"]["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0),
        slots=job["spec"].get("slotsPerWorker", 1),
        accepted="Created" in conditions,
        outcome=outcome,
        outcome_message=conditions[outcome].get("message", "")[:MAX_MESSAGE] if outcome else "",
        deleting_since=parse_time(deleted) if deleted else None,
        pods=tuple(read_pod(pod) for pod in pods if read_label(pod, names.LABEL_GROUP) == metadata["name"]),
    )


def read_pod(pod: Object) -> Pod:
    """Read a pod of a group."""
    metadata, status = pod["metadata"], pod.get("status", {})
    draining = metadata.get("annotations", {}).get(names.ANNOTATION_DRAINING_SINCE)
    containers = status.get("containerStatuses", [])
    ended = next((item["state"]["terminated"] for item in containers if "terminated" in item.get("state", {})), None)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        is_launcher=read_label(pod, names.LABEL_JOB_ROLE) == "launcher",
        index=int(read_label(pod, names.LABEL_REPLICA_INDEX) or 0),
        revision=read_label(pod, names.LABEL_REVISION),
        created=parse_time(metadata["creationTimestamp"]),
        phase=status.get("phase", "Pending"),
        ready=any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions", [])),
        deleting="deletionTimestamp" in metadata,
        node=pod["spec"].get("nodeName"),
        ip=status.get("podIP"),
        reason=status.get("reason", ""),
        message=status.get("message", "")[:MAX_MESSAGE],
        ending=_read_ending(ended) if ended else None,
        draining_since=_read_time(draining),
        waiting=_find_wait(status, containers),
    )


def _read_ending(terminated: dict[str, Any]) -> Ending:
    """Read a container's end; the supervisor leaves its reason as JSON, other programs just text."""
    text = terminated.get("message", "")
    try:
        said = json.loads(text)
        said = said if isinstance(said, dict) else {}
    except ValueError:
        said = {}
    rank = said.get("rank")
    kubernetes_reason = terminated.get("reason", "")
    return Ending(
        exit_code=int(terminated.get("exitCode", 0)),
        reason=str(said.get("reason") or (kubernetes_reason if kubernetes_reason == "OOMKilled" else "")),
        rank=rank if isinstance(rank, int) else None,
        message=str(said.get("message", "") if said else text)[:MAX_MESSAGE],
    )


def _find_wait(status: dict[str, Any], containers: list[dict[str, Any]]) -> str:
    """Find why a pod is not running: it has no node, or a container cannot start."""
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("message"):
            return f"{waiting.get('reason', '')}: {waiting['message']}"
    return ""


def _read_time(text: str | None) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def _read_spec(deployment: Object) -> tuple[Spec | None, tuple[str, ...]]:
    try:
        return parse_deployment(deployment), ()
    except SpecError as error:
        return None, tuple(error.problems)


def _read_drain(launchers: Launchers, group: Group) -> Group:
    """Ask the launcher how far its drain is, where there is one."""
    launcher = group.launcher
    if not group.is_draining or group.deleting_since is not None or launcher is None or not launcher.ip:
        return group
    return group if launcher.ended else replace(group, drain=launchers.read_drain(launcher.ip))


def _list_leftovers(pods: list[Object], groups: set[str]) -> tuple[Leftover, ...]:
    return tuple(
        Leftover(
            name=pod["metadata"]["name"],
            group=read_label(pod, names.LABEL_GROUP),
            role=read_label(pod, names.LABEL_ROLE),
            index=int(read_label(pod, names.LABEL_INDEX) or 0),
        )
        for pod in pods
        if read_label(pod, names.LABEL_GROUP) not in groups
    )
