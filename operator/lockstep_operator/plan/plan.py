"""Every decision: from what is there to what has to be done next. Pure; no client, no clock.

One pass asks only for what may be done now; what has to wait for it comes with a later pass, because each effect
wakes the deployment again. So a restart of the operator between any two actions loses nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from lockstep_operator import names
from lockstep_operator.decide.actions import (
    Action,
    AddFinalizer,
    CreateGroup,
    CreateService,
    DeleteGroup,
    DeleteService,
    Plan,
    RemoveFinalizer,
    UpdateService,
)
from lockstep_operator.decide.backoff import find_next_try
from lockstep_operator.decide.diagnose import find_failure, is_ready
from lockstep_operator.decide.places import Place, Places, choose_places
from lockstep_operator.decide.retire import plan_retirement
from lockstep_operator.decide.state import ACCEPT_LIMIT_S, Group, Observed
from lockstep_operator.manifests.mpijob import build_mpijob
from lockstep_operator.manifests.pods import STOP_MARGIN_S
from lockstep_operator.manifests.service import build_service
from lockstep_operator.resource.record import format_time
from lockstep_operator.resource.spec import Spec

LOST_MARGIN_S = 30
"""A group that has not ended so long after its grace is taken for lost, and its place filled under another name."""
PLATFORM_RETRY_S = 15.0
UNSETTLED_RETRY_S = 30.0
ENDING_RETRY_S = 5.0


def plan(seen: Observed, now: datetime) -> Plan:
    """Plan what has to be done next for one deployment.

    Args:
        seen: what is there.
        now: the time, with a time zone.
    """
    if seen.deleting:
        return _plan_deletion(seen, now)
    if not seen.has_finalizer:
        return Plan((AddFinalizer(),))
    if seen.spec is None:
        return Plan()
    services = _plan_services(seen, seen.spec)
    if not seen.mpijobs_served:
        return services.join(Plan(again_s=PLATFORM_RETRY_S))
    if seen.spec.paused:
        return services
    return services.join(_plan_groups(seen, seen.spec, now))


def _plan_deletion(seen: Observed, now: datetime) -> Plan:
    """Traffic ends first, then requests, then groups, and the deployment itself goes when no pod is left."""
    if not seen.has_finalizer:
        return Plan()
    services = [service for service in seen.services if "deletionTimestamp" not in service["metadata"]]
    steps = Plan(tuple(_delete_service(service) for service in services))
    living = [group for group in seen.groups if group.deleting_since is None]
    for group in living:
        steps = steps.join(plan_retirement(seen, group, "Deletion", now))
    if seen.groups or seen.leftovers or seen.services:
        return steps.join(Plan(again_s=ENDING_RETRY_S))
    return Plan((RemoveFinalizer(),))


def _plan_services(seen: Observed, spec: Spec) -> Plan:
    wanted = [build_service(role, deployment=seen.name, namespace=seen.namespace) for role in spec.roles]
    existing = {service["metadata"]["name"]: service for service in seen.services}
    actions: list[Action] = []
    for manifest in wanted:
        service = existing.pop(manifest["metadata"]["name"], None)
        if service is None:
            actions.append(CreateService(manifest))
        elif not _has_all({part: manifest[part] for part in ("metadata", "spec")}, service):
            actions.append(UpdateService(manifest, service["metadata"]["resourceVersion"]))
    actions += [
        _delete_service(service) for service in existing.values() if "deletionTimestamp" not in service["metadata"]
    ]
    return Plan(tuple(actions))


def _plan_groups(seen: Observed, spec: Spec, now: datetime) -> Plan:
    places = choose_places(seen, spec)
    steps = Plan()
    for group in places.surplus:
        steps = steps.join(plan_retirement(seen, group, "ScaleDown", now))
    for place in places.wanted:
        steps = steps.join(_plan_place(seen, spec, place, now))
    return steps.join(_plan_rollout(seen, spec, places, now))


def _plan_place(seen: Observed, spec: Spec, place: Place, now: datetime) -> Plan:
    if place.group is None:
        return _plan_creation(seen, spec, place, now)
    if place.group.is_draining:  # once told to drain, an engine serves no more
        return plan_retirement(seen, place.group, "ScaleDown" if place.is_updated else "Rollout", now)
    return _plan_repair(place.group, place, now) if place.is_updated else Plan()


def _plan_repair(group: Group, place: Place, now: datetime) -> Plan:
    """Delete a broken group once its failure is on record; before that the status has to be written."""
    record = place.record
    failure = find_failure(group, record, format_time(now))
    if failure is None:
        return Plan(again_s=None if is_ready(group) else _find_accept_check(group, now))
    if record is None or record.last_failure is None or record.last_failure.uid != group.uid:
        return Plan()
    return Plan((DeleteGroup(group, record.last_failure.reason, is_repair=True),))


def _find_accept_check(group: Group, now: datetime) -> float:
    left_s = ACCEPT_LIMIT_S - (now - group.created).total_seconds()
    return left_s + 1 if not group.accepted and left_s > 0 else UNSETTLED_RETRY_S


def _plan_creation(seen: Observed, spec: Spec, place: Place, now: datetime) -> Plan:
    blocked_s = _find_block(seen, place, now)
    if blocked_s is not None:
        return Plan(again_s=blocked_s)
    if place.record is not None and place.record.last_failure is not None:
        wait_s = (find_next_try(place.record, spec.restart_policy) - now).total_seconds()
        if wait_s > 0:
            return Plan(again_s=wait_s)
    taken = {group.name for group in place.ending}
    for incarnation in range(names.MAX_INCARNATION + 1):
        name = names.build_group_name(seen.name, place.role.name, place.revision, place.index, incarnation)
        if name not in taken:
            return Plan((CreateGroup(_build_group(seen, spec, place, name)),), again_s=ACCEPT_LIMIT_S + 1)
    return Plan(again_s=UNSETTLED_RETRY_S)


def _find_block(seen: Observed, place: Place, now: datetime) -> float | None:
    """Find how long to wait for an earlier group to end: it may hold the GPUs, and it has the name."""
    limit = timedelta(seconds=seen.drain_timeout_s + STOP_MARGIN_S + LOST_MARGIN_S)
    for group in place.ending:
        if group.deleting_since is not None and now - group.deleting_since < limit:
            return ENDING_RETRY_S
    is_held = any((pod.role, pod.index) == (place.role.name, place.index) for pod in seen.leftovers)
    return ENDING_RETRY_S if is_held else None


def _build_group(seen: Observed, spec: Spec, place: Place, name: str) -> dict[str, object]:
    return build_mpijob(
        spec,
        place.role,
        deployment=seen.name,
        namespace=seen.namespace,
        name=name,
        index=place.index,
        revision=place.revision,
    )


def _plan_rollout(seen: Observed, spec: Spec, places: Places, now: datetime) -> Plan:
    """Retire groups of older revisions: at once those that serve nobody, the others within `maxUnavailable`."""
    living = [
        (place, place.group) for place in places.wanted if place.group is not None and not place.group.is_draining
    ]
    ready = [group for place, group in living if is_ready(group)]
    outdated = [group for place, group in living if not place.is_updated]
    idle = [group for group in outdated if not is_ready(group)]
    down = len(places.wanted) - len(ready)
    allowed = max(0, spec.rollout.max_unavailable - down)
    busy = [group for group in outdated if is_ready(group)][:allowed]
    steps = Plan()
    for group in [*idle, *busy]:
        steps = steps.join(plan_retirement(seen, group, "Rollout", now))
    return steps


def _delete_service(service: dict[str, object]) -> DeleteService:
    metadata = service["metadata"]
    assert isinstance(metadata, dict)
    return DeleteService(metadata["name"], metadata["uid"])


def _has_all(wanted: object, existing: object) -> bool:
    """Whether everything in `wanted` is in `existing` too; what others added does not matter."""
    if isinstance(wanted, dict):
        return isinstance(existing, dict) and all(_has_all(item, existing.get(key)) for key, item in wanted.items())
    if isinstance(wanted, list):
        return isinstance(existing, list) and len(wanted) == len(existing) and all(map(_has_all, wanted, existing))
    return wanted == existing
