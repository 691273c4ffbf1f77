"""What to tell about a deployment: groups, counts, conditions, phase. Pure; it decides nothing about the cluster.

Nothing in it ticks: the same picture gives the same status at any time, so that a steady deployment is never written.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lockstep_operator import names
from lockstep_operator.decide.backoff import add_failure, find_next_try, is_exhausted
from lockstep_operator.decide.conditions import build_conditions, choose_phase
from lockstep_operator.decide.diagnose import describe_wait, find_failure, is_ready, list_started_workers
from lockstep_operator.decide.places import Place, choose_places
from lockstep_operator.decide.revision import compute_revision
from lockstep_operator.decide.state import Group, Observed
from lockstep_operator.manifests.service import build_url
from lockstep_operator.resource.record import GroupRecord, RoleRecord, Status, format_time
from lockstep_operator.resource.spec import RestartPolicy, Role, Spec


def status(seen: Observed, conflicts: tuple[str, ...], now: datetime) -> Status:
    """Tell what there is.

    Args:
        seen: what is there.
        conflicts: names of objects that should be ours and belong to somebody else.
        now: the time, with a time zone; used only for what turns in this very pass.
    """
    if seen.spec is None:
        groups = tuple(_record_ending(group, now) for group in seen.groups)
        draft = replace(seen.before, observed_generation=seen.generation, groups=groups)
    else:
        draft = _fill_counts(seen, seen.spec, _build_groups(seen, seen.spec, now))
    conditions = build_conditions(seen, draft, conflicts, now)
    return replace(draft, conditions=conditions, phase=choose_phase(seen, conditions))


def _build_groups(seen: Observed, spec: Spec, now: datetime) -> tuple[GroupRecord, ...]:
    places = choose_places(seen, spec)
    records = [_record_place(place, spec.restart_policy, now) for place in places.wanted]
    records += [_record_ending(group, now) for group in places.surplus]
    records += [_record_ending(group, now) for group in seen.groups if group.deleting_since is not None]
    by_name: dict[str, GroupRecord] = {}
    for record in records:  # a place that waits for its own earlier group shares its name; the place has the history
        if record is not None:
            by_name.setdefault(record.name, record)
    return tuple(sorted(by_name.values(), key=lambda record: (record.role, record.index, record.name)))


def _record_place(place: Place, policy: RestartPolicy, now: datetime) -> GroupRecord | None:
    if place.group is None:
        return _record_empty(place, policy)
    record = _record_living(place, place.group, now)
    failure = find_failure(place.group, place.record, format_time(now))
    if failure is None or place.group.is_draining or not place.is_updated:
        return record
    if record.last_failure is not None and record.last_failure.uid == place.group.uid:
        return replace(record, state="Broken", message=record.last_failure.message)
    return replace(
        record,
        state="Broken",
        message=failure.message,
        restarts=record.restarts + 1,
        failures=add_failure(record.failures, failure, policy),
        last_failure=failure,
    )


def _record_living(place: Place, group: Group, now: datetime) -> GroupRecord:
    history = place.record or GroupRecord(name=group.name)
    return replace(
        _record_ending(group, now),
        workers=list_started_workers(group, place.record),
        restarts=history.restarts,
        failures=history.failures,
        last_failure=history.last_failure,
    )


def _record_empty(place: Place, policy: RestartPolicy) -> GroupRecord | None:
    """Keep the history of a place whose group is gone; a place without one needs no record."""
    record = place.record
    if record is None or record.last_failure is None:
        return None
    exhausted = is_exhausted(record, policy)
    next_try = format_time(find_next_try(record, policy))
    limit = f"{len(record.failures)} failures within {policy.window_seconds} s; " if exhausted else ""
    return replace(
        record,
        state="Exhausted" if exhausted else "BackingOff",
        message=f"{limit}next group not before {next_try}",
        uid="",
        workers=(),
        nodes=(),
    )


def _record_ending(group: Group, now: datetime) -> GroupRecord:
    """Describe a group by what it does, without its place's history."""
    pods = sorted(group.pods, key=lambda pod: pod.index)
    state = _choose_state(group, now)
    return GroupRecord(
        name=group.name,
        role=group.role,
        index=group.index,
        revision=group.revision,
        state=state,
        message="" if state in {"Ready", "Broken"} else _describe_state(group, state),
        uid=group.uid,
        nodes=tuple(pod.node for pod in pods if pod.node),
    )


def _choose_state(group: Group, now: datetime) -> str:
    if group.deleting_since is not None:
        return "Terminating"
    if group.is_draining:
        return "Draining"
    if is_ready(group):
        return "Ready"
    if find_failure(group, None, format_time(now)) is not None:
        return "Broken"
    return "Starting" if any(pod.node for pod in group.pods) else "Pending"


def _describe_state(group: Group, state: str) -> str:
    if state == "Terminating":
        left = sorted(pod.name for pod in group.pods)
        return f"waits for pods to end: {', '.join(left)}" if left else "waits for its objects to be removed"
    return "finishes its requests" if state == "Draining" else describe_wait(group)


def _fill_counts(seen: Observed, spec: Spec, groups: tuple[GroupRecord, ...]) -> Status:
    roles = tuple(_record_role(seen, spec, role, groups) for role in spec.roles)
    wanted = spec.replicas * len(spec.roles)
    ready = sum(role.ready_replicas for role in roles)
    return Status(
        observed_generation=seen.generation,
        replicas=sum(role.replicas for role in roles),
        ready_replicas=ready,
        updated_replicas=sum(role.updated_replicas for role in roles),
        ready_groups=f"{ready}/{wanted}",
        nodes=sum(role.num_nodes * spec.replicas for role in spec.roles),
        selector=names.build_serving_selector(seen.name),
        revision=roles[0].revision,
        url=roles[0].url,
        roles=roles,
        groups=groups,
    )


def _record_role(seen: Observed, spec: Spec, role: Role, groups: tuple[GroupRecord, ...]) -> RoleRecord:
    revision = compute_revision(spec, role)
    mine = [group for group in groups if group.role == role.name]
    living = [group for group in mine if group.uid and group.state != "Terminating"]
    failures = [group.last_failure for group in mine if group.last_failure is not None]
    return RoleRecord(
        name=role.name,
        replicas=len(living),
        ready_replicas=sum(group.state == "Ready" for group in living),
        updated_replicas=sum(group.revision == revision for group in living),
        revision=revision,
        nodes_per_group=role.num_nodes,
        url=build_url(role, deployment=seen.name, namespace=seen.namespace),
        restarts=sum(group.restarts for group in mine),
        last_failure=max(failures, key=lambda failure: failure.time, default=None),
    )
