"""One entry a group: its state, what it waits for, and the history of its place. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lockstep_operator.api.spec import RestartPolicy, Spec
from lockstep_operator.api.status import GroupStatus, format_time
from lockstep_operator.groups.backoff import add_failure, find_next_try, is_exhausted
from lockstep_operator.groups.health import describe_wait, find_failure, is_ready, list_started_workers
from lockstep_operator.groups.places import Place, choose_places
from lockstep_operator.groups.state import Group, Observed


def describe_groups(seen: Observed, spec: Spec, now: datetime) -> tuple[GroupStatus, ...]:
    """Describe all groups, and the places that wait for one and have a history."""
    places = choose_places(seen, spec)
    entries = [_describe_place(place, spec.restart_policy, now) for place in places.wanted]
    entries += [describe_group(group, now) for group in places.surplus]
    entries += [describe_group(group, now) for group in seen.groups if group.deleting_since is not None]
    by_name: dict[str, GroupStatus] = {}
    for entry in entries:  # a place that waits for its own earlier group shares its name; the place has the history
        if entry is not None:
            by_name.setdefault(entry.name, entry)
    return tuple(sorted(by_name.values(), key=lambda entry: (entry.role, entry.index, entry.name)))


def _describe_place(place: Place, policy: RestartPolicy, now: datetime) -> GroupStatus | None:
    if place.group is None:
        return _describe_empty(place, policy)
    entry = _describe_living(place, place.group, now)
    failure = find_failure(place.group, place.history, format_time(now))
    if failure is None or place.group.is_draining or not place.is_updated:
        return entry
    if entry.last_failure is not None and entry.last_failure.uid == place.group.uid:
        return replace(entry, state="Broken", message=entry.last_failure.message)
    return replace(
        entry,
        state="Broken",
        message=failure.message,
        restarts=entry.restarts + 1,
        failures=add_failure(entry.failures, failure, policy),
        last_failure=failure,
    )


def _describe_living(place: Place, group: Group, now: datetime) -> GroupStatus:
    history = place.history or GroupStatus(name=group.name)
    return replace(
        describe_group(group, now),
        workers=list_started_workers(group, place.history),
        restarts=history.restarts,
        failures=history.failures,
        last_failure=history.last_failure,
    )


def _describe_empty(place: Place, policy: RestartPolicy) -> GroupStatus | None:
    """Keep the history of a place whose group is gone; a place without one needs no entry."""
    history = place.history
    if history is None or history.last_failure is None:
        return None
    exhausted = is_exhausted(history, policy)
    next_try = format_time(find_next_try(history, policy))
    limit = f"{len(history.failures)} failures within {policy.window_seconds} s; " if exhausted else ""
    return replace(
        history,
        state="Exhausted" if exhausted else "BackingOff",
        message=f"{limit}next group not before {next_try}",
        uid="",
        workers=(),
        nodes=(),
    )


def describe_group(group: Group, now: datetime) -> GroupStatus:
    """Describe a group by what it does, without its place's history."""
    pods = sorted(group.pods, key=lambda pod: pod.index)
    state = _choose_state(group, now)
    return GroupStatus(
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
