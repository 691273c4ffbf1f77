"""How a change reaches the groups of one role, within the role's own budget. Pure.

    wanted   places of the role
    ready    of them, those whose group is ready, whatever its revision
    budget = max(0, maxUnavailable - (wanted - ready))

Retired are all groups of older revisions that serve nobody, and `budget` of those that serve. A place that is empty,
starts, drains or is broken uses the budget up, whatever the reason. So a rollout never takes the role below
`wanted - maxUnavailable` ready groups, a revision that does not come up stops by itself, and old groups that are
broken never hold it up. No group is added beforehand: a full rack has no room.

Example, wanted 4, maxUnavailable 2:

    place   0        1         2          3
    group   new      new       old        old
    is      ready    starting  ready      ready      budget = 2 - (4 - 3) = 1: place 2 is retired, place 3 waits
"""

from __future__ import annotations

from datetime import datetime

from lockstep_operator.api.spec import Spec
from lockstep_operator.groups.health import is_ready
from lockstep_operator.groups.places import Place
from lockstep_operator.groups.state import Observed
from lockstep_operator.plan.actions import Plan
from lockstep_operator.plan.retire import plan_retirement


def plan_rollout(seen: Observed, spec: Spec, places: tuple[Place, ...], now: datetime) -> Plan:
    """Retire groups of older revisions: at once those that serve nobody, the others within the budget.

    Args:
        seen: what is there.
        spec: the deployment's spec.
        places: all places of one role.
        now: the time, with a time zone.
    """
    living = [(place, place.group) for place in places if place.group is not None and not place.group.is_draining]
    num_ready = sum(is_ready(group) for _, group in living)
    outdated = [group for place, group in living if not place.is_updated]
    idle = [group for group in outdated if not is_ready(group)]
    budget = max(0, spec.rollout.max_unavailable - (len(places) - num_ready))
    busy = [group for group in outdated if is_ready(group)][:budget]
    return Plan().join(*(plan_retirement(seen, group, "Rollout", now) for group in [*idle, *busy]))
