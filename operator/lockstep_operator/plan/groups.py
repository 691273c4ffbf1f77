"""One place of a role: fill it, wait for it, repair what broke in it. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from lockstep_operator import names
from lockstep_operator.api.spec import Spec
from lockstep_operator.api.status import format_time
from lockstep_operator.children.mpijob import MPIJOB, build_mpijob
from lockstep_operator.children.pods import STOP_MARGIN_S
from lockstep_operator.groups.backoff import find_next_try
from lockstep_operator.groups.health import find_failure, is_ready
from lockstep_operator.groups.places import Place
from lockstep_operator.groups.state import ACCEPT_LIMIT_S, Group, Observed
from lockstep_operator.kinds import Object
from lockstep_operator.plan.actions import CreateChild, Plan
from lockstep_operator.plan.retire import delete_group, plan_retirement

LOST_MARGIN_S = 30
"""A group that has not ended so long after its grace is taken for lost, and its place filled under another name."""
UNSETTLED_RETRY_S = 30.0
ENDING_RETRY_S = 5.0


def plan_place(seen: Observed, spec: Spec, place: Place, now: datetime) -> Plan:
    """Plan what a place needs; an older revision is none of its business but the rollout's."""
    if place.group is None:
        return _plan_creation(seen, spec, place, now)
    if place.group.is_draining:  # once told to drain, an engine serves no more
        return plan_retirement(seen, place.group, "ScaleDown" if place.is_updated else "Rollout", now)
    return _plan_repair(place.group, place, now) if place.is_updated else Plan()


def _plan_repair(group: Group, place: Place, now: datetime) -> Plan:
    """Delete a broken group once its failure stands in the status; before that the status has to be written.

    The other way round a crash between the two would lose the failure, and with it the backoff: the group that broke
    is the only other thing that knows of it.
    """
    history = place.history
    failure = find_failure(group, history, format_time(now))
    if failure is None:
        return Plan(again_s=None if is_ready(group) else _find_accept_check(group, now))
    if history is None or history.last_failure is None or history.last_failure.uid != group.uid:
        return Plan()
    return Plan((delete_group(group, history.last_failure.reason, is_repair=True),))


def _find_accept_check(group: Group, now: datetime) -> float:
    left_s = ACCEPT_LIMIT_S - (now - group.created).total_seconds()
    return left_s + 1 if not group.accepted and left_s > 0 else UNSETTLED_RETRY_S


def _plan_creation(seen: Observed, spec: Spec, place: Place, now: datetime) -> Plan:
    blocked_s = _find_block(seen, place, now)
    if blocked_s is not None:
        return Plan(again_s=blocked_s)
    if place.history is not None and place.history.last_failure is not None:
        wait_s = (find_next_try(place.history, spec.restart_policy) - now).total_seconds()
        if wait_s > 0:
            return Plan(again_s=wait_s)
    taken = {group.name for group in place.ending}
    for incarnation in range(names.MAX_INCARNATION + 1):
        name = names.build_group_name(seen.name, place.role.name, place.revision, place.index, incarnation)
        if name not in taken:
            manifest = _build_group(seen, spec, place, name)
            return Plan((CreateChild(MPIJOB, manifest),), again_s=ACCEPT_LIMIT_S + 1)
    return Plan(again_s=UNSETTLED_RETRY_S)


def _find_block(seen: Observed, place: Place, now: datetime) -> float | None:
    """Find how long to wait for an earlier group to end: it may hold the GPUs, and it has the name."""
    limit = timedelta(seconds=seen.drain_timeout_s + STOP_MARGIN_S + LOST_MARGIN_S)
    for group in place.ending:
        if group.deleting_since is not None and now - group.deleting_since < limit:
            return ENDING_RETRY_S
    is_held = any((pod.role, pod.index) == (place.role.name, place.index) for pod in seen.leftovers)
    return ENDING_RETRY_S if is_held else None


def _build_group(seen: Observed, spec: Spec, place: Place, name: str) -> Object:
    return build_mpijob(
        spec,
        place.role,
        deployment=seen.name,
        namespace=seen.namespace,
        name=name,
        index=place.index,
        revision=place.revision,
    )
