"""What to tell about a deployment: groups, each role's counts, conditions, phase.

Nothing in it ticks: the same picture gives the same status at any time, so that a steady deployment is never written.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lockstep_operator import names
from lockstep_operator.api.status import GroupStatus, Status
from lockstep_operator.groups.state import Observed
from lockstep_operator.status.conditions import build_conditions, choose_phase
from lockstep_operator.status.groups import describe_group, describe_groups
from lockstep_operator.status.roles import RoleCounts, count_roles, describe_role


def status(seen: Observed, conflicts: tuple[str, ...], now: datetime) -> Status:
    """Tell what there is.

    Args:
        seen: what is there.
        conflicts: names of objects that should be ours and belong to somebody else.
        now: the time, with a time zone; used only for what turns in this very pass.
    """
    roles: tuple[RoleCounts, ...] = ()
    if seen.spec is None:
        groups = tuple(describe_group(group, now) for group in seen.groups)
        draft = replace(seen.before, observed_generation=seen.generation, groups=groups)
    else:
        groups = describe_groups(seen, seen.spec, now)
        roles = count_roles(seen.spec, groups)
        draft = _join_roles(seen, roles, groups)
    conditions = build_conditions(seen, draft, roles, conflicts, now)
    return replace(draft, conditions=conditions, phase=choose_phase(seen, roles, conditions))


def _join_roles(seen: Observed, roles: tuple[RoleCounts, ...], groups: tuple[GroupStatus, ...]) -> Status:
    """Sum up the roles; where the status has room for one value only, it is the first role's."""
    described = tuple(describe_role(seen, counts) for counts in roles)
    ready = sum(role.ready_replicas for role in described)
    return Status(
        observed_generation=seen.generation,
        replicas=sum(role.replicas for role in described),
        ready_replicas=ready,
        updated_replicas=sum(role.updated_replicas for role in described),
        ready_groups=f"{ready}/{sum(counts.wanted for counts in roles)}",
        nodes=sum(counts.role.num_nodes * counts.wanted for counts in roles),
        selector=names.build_serving_selector(seen.name),
        revision=described[0].revision,
        url=described[0].url,
        roles=described,
        groups=groups,
    )
