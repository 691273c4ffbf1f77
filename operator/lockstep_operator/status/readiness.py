"""Ready, Available and Progressing: asked of each role, then joined. Pure.

    Ready         every role has all its groups of the current revision ready
    Available     every role that wants groups has `max(1, wanted - maxUnavailable)` of them ready
    Progressing   some role is not yet as the spec says, and work on it goes on, whatever holds up another role

A role that wants no group is no hindrance, unless no role wants one. A message names the roles that it speaks of only
where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockstep_operator.api.spec import Spec
from lockstep_operator.api.status import Status
from lockstep_operator.groups.state import Observed
from lockstep_operator.status.roles import RoleCounts
from lockstep_operator.status.trouble import CHILD_API_MISSING, EXHAUSTED, Verdict

Roles = tuple[RoleCounts, ...]
PASSING = {"GroupBroken", "MPIJobNotAccepted", CHILD_API_MISSING}
"""Troubles in which work on all roles goes on."""
_SCALED_TO_ZERO = Verdict(False, "ScaledToZero", "spec.replicas is 0: no group serves")


def is_scaled_to_zero(roles: Roles) -> bool:
    """Whether no role wants a group; then `spec.replicas` is 0, because some role follows it."""
    return all(counts.wanted == 0 for counts in roles)


def judge_ready(seen: Observed, draft: Status, roles: Roles, trouble: Verdict | None) -> Verdict:
    """Judge whether the deployment is as its spec says."""
    if seen.deleting:
        return Verdict(False, "Deleting", _describe_deletion(seen, draft))
    spec = seen.spec
    if spec is None:
        return Verdict(False, "InvalidSpec", trouble.message if trouble else "")
    if is_scaled_to_zero(roles):
        return _SCALED_TO_ZERO
    behind = [counts for counts in roles if counts.num_fresh < counts.wanted]
    if not behind and (trouble is None or trouble.reason != "Conflict"):
        return Verdict(True, "AllGroupsReady", _join(roles, _list_wanting(roles), _say_ready))
    if trouble is not None:
        return Verdict(False, trouble.reason, trouble.message)
    if spec.paused:
        return Verdict(False, "Paused", "spec.paused is true: groups are left as they are")
    return Verdict(False, "GroupsNotReady", _join(roles, behind, _say_behind) + _describe_wait(draft, roles, behind))


def judge_available(seen: Observed, draft: Status, roles: Roles) -> Verdict:
    """Judge whether the deployment is of use, of whatever revision its groups are."""
    spec = seen.spec
    if seen.deleting or spec is None:
        reason = "InvalidSpec" if spec is None else "Deleting"
        serves = any(role.ready_replicas for role in draft.roles)
        return Verdict(serves and not seen.deleting, reason, "")
    if is_scaled_to_zero(roles):
        return _SCALED_TO_ZERO
    wanting = _list_wanting(roles)
    short = [counts for counts in wanting if counts.num_ready < _count_least(spec, counts)]
    message = _join(
        roles,
        short or wanting,
        lambda counts: f"{counts.num_ready} groups are ready, {_count_least(spec, counts)} are needed",
    )
    return Verdict(not short, "TooFewGroupsReady" if short else "EnoughGroupsReady", message)


def judge_progressing(seen: Observed, draft: Status, roles: Roles, trouble: Verdict | None) -> Verdict:
    """Judge whether work on the deployment goes on."""
    if seen.deleting:
        return Verdict(True, "Deleting", "groups are drained and removed")
    spec = seen.spec
    if spec is None:
        return Verdict(False, "InvalidSpec", "nothing is done until the spec is right")
    if spec.paused:
        return Verdict(False, "Paused", "spec.paused is true: groups are left as they are")
    unfinished = [counts for counts in roles if not _is_finished(counts)]
    moving = [counts for counts in unfinished if not counts.is_exhausted]
    has_strays = len(draft.groups) > sum(len(counts.groups) for counts in roles)
    is_exhausted = trouble is not None and trouble.reason in EXHAUSTED
    if trouble is not None and trouble.reason not in PASSING and not (is_exhausted and (moving or has_strays)):
        return Verdict(False, trouble.reason, trouble.message)
    if not unfinished and not has_strays:
        return Verdict(False, "Complete", "all groups are ready and of the current revision")
    told = moving or unfinished or roles
    outdated = [counts for counts in told if counts.num_updated < len(counts.living)]
    if outdated:
        return Verdict(True, "RollingOut", _join(roles, outdated, _say_outdated))
    return Verdict(True, "GroupsStarting", _join(roles, told, _say_ready_of_wanted))


def _join(roles: Roles, told: Iterable[RoleCounts], say: Callable[[RoleCounts], str]) -> str:
    """Say something of some of the roles, each by its name where the deployment has several."""
    if len(roles) == 1:
        return say(roles[0])
    return "; ".join(f"role {counts.role.name}: {say(counts)}" for counts in told)


def _say_ready(counts: RoleCounts) -> str:
    return f"{counts.num_fresh} of {counts.wanted} groups are ready"


def _say_behind(counts: RoleCounts) -> str:
    return f"{counts.num_fresh} of {counts.wanted} groups of the current revision are ready"


def _say_outdated(counts: RoleCounts) -> str:
    return f"{len(counts.living) - counts.num_updated} groups of an older revision are left"


def _say_ready_of_wanted(counts: RoleCounts) -> str:
    return f"{counts.num_ready} of {counts.wanted} groups are ready"


def _list_wanting(roles: Roles) -> list[RoleCounts]:
    return [counts for counts in roles if counts.wanted > 0]


def _is_finished(counts: RoleCounts) -> bool:
    """All groups serve in the current revision, and nothing besides is left."""
    return counts.num_updated == counts.num_ready == counts.wanted == len(counts.groups)


def _count_least(spec: Spec, counts: RoleCounts) -> int:
    """Count the groups that must serve for a role to be of use."""
    return max(1, counts.wanted - spec.rollout.max_unavailable)


def _describe_wait(draft: Status, roles: Roles, behind: list[RoleCounts]) -> str:
    """Say what the first group waits for, apart from groups of roles that have all they need."""
    at_rest = {counts.role.name for counts in roles} - {counts.role.name for counts in behind}
    waiting = [
        group for group in draft.groups if group.state not in {"Ready", "Terminating"} and group.role not in at_rest
    ]
    return f"; {waiting[0].name} {waiting[0].message}" if waiting and waiting[0].message else ""


def _describe_deletion(seen: Observed, draft: Status) -> str:
    left = [f"{group.name} {group.message}" for group in draft.groups if group.message]
    left += [f"pod {pod.name}" for pod in seen.leftovers]
    return f"being deleted: {left[0]}" if left else "being deleted"
