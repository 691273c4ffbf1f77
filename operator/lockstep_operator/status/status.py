"""What to tell about a deployment: groups, each role's counts, conditions, phase.

Nothing in it ticks: the same picture gives the same status at any time, so that a steady deployment is never written.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lockstep_operator import names
from lockstep_operator.api.status import GroupStatus, Status
from lockstep_operator.groups.state import Observed
from lockstep_operator.kinds import Kind
from lockstep_operator.status.conditions import build_conditions, choose_phase
from lockstep_operator.status.groups import describe_group, describe_groups
from lockstep_operator.status.roles import RoleCounts, count_roles, describe_role
from lockstep_operator.status.trouble import Hindrances


def status(seen: Observed, conflicts: tuple[str, ...], now: datetime, missing: tuple[Kind, ...] = ()) -> Status:
    """Tell what there is.

    Args:
        seen: what is there.
        conflicts: names of objects that should be ours and belong to somebody else.
        now: the time, with a time zone; used only for what turns in this very pass.
        missing: kinds of which children are wanted and whose API is not served.
    """
    roles: tuple[RoleCounts, ...] = ()
    if seen.spec is None:
        groups = tuple(describe_group(group, now) for group in seen.groups)
        draft = replace(seen.before, observed_generation=seen.generation, groups=groups)
    else:
        groups = describe_groups(seen, seen.spec, now)
        roles = count_roles(seen.spec, groups)
        draft = _join_roles(seen, roles, groups)
    conditions = build_conditions(seen, draft, roles, Hindrances(conflicts, missing), now)
    return replace(draft, conditions=conditions, phase=choose_phase(seen, roles, conditions))


def _join_roles(seen: Observed, roles: tuple[RoleCounts, ...], groups: tuple[GroupStatus, ...]) -> Status:
    """Join the roles.

    What the scale subresource shows, and the counts beside it, are those of the one role that `spec.replicas` scales:
    an autoscaler that measured other groups too would scale by what it cannot change. Where else the status has room
    for one value only, it is the first role's.
    """
    described = tuple(describe_role(seen, counts) for counts in roles)
    scaled = next(role for role, counts in zip(described, roles, strict=True) if counts.role.replicas is None)
    ready = sum(role.ready_replicas for role in described)
    return Status(
        observed_generation=seen.generation,
        replicas=scaled.replicas,
        ready_replicas=scaled.ready_replicas,
        updated_replicas=scaled.updated_replicas,
        ready_groups=f"{ready}/{sum(counts.wanted for counts in roles)}",
        nodes=sum(counts.role.num_nodes * counts.wanted for counts in roles),
        selector=names.build_serving_selector(seen.name, scaled.name if len(roles) > 1 else None),
        revision=described[0].revision,
        url=described[0].url,
        roles=described,
        groups=groups,
    )
