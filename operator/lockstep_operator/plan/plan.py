"""The whole plan on one screen.

One pass asks only for what may be done now; what has to wait for it comes with a later pass, because each effect
wakes the deployment again. So a restart of the operator between any two actions loses nothing.
"""

from __future__ import annotations

from datetime import datetime

from lockstep_operator.api.spec import Spec
from lockstep_operator.children.child import Child
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.groups.places import choose_places
from lockstep_operator.groups.state import Observed
from lockstep_operator.plan.actions import AddFinalizer, Plan, RemoveFinalizer
from lockstep_operator.plan.children import PLATFORM_RETRY_S, has_removable, plan_children, plan_removal
from lockstep_operator.plan.groups import ENDING_RETRY_S, plan_place
from lockstep_operator.plan.retire import plan_retirement
from lockstep_operator.plan.rollout import plan_rollout


def plan(seen: Observed, now: datetime, children: tuple[Child, ...] = CHILDREN) -> Plan:
    """Plan what has to be done next for one deployment.

    Args:
        seen: what is there.
        now: the time, with a time zone.
        children: the kinds of children that a deployment has.
    """
    if seen.deleting:
        return _plan_deletion(seen, now, children)
    if not seen.has_finalizer:
        return Plan((AddFinalizer(),))
    if seen.spec is None:
        return Plan()
    standing = plan_children(seen, seen.spec, children)
    if not seen.is_served(MPIJOB.kind):
        return standing.join(Plan(again_s=PLATFORM_RETRY_S))
    if seen.spec.paused:
        return standing
    return standing.join(_plan_groups(seen, seen.spec, now))


def _plan_deletion(seen: Observed, now: datetime, children: tuple[Child, ...]) -> Plan:
    """Traffic ends first, then requests, then groups, and the deployment itself goes when no pod is left."""
    if not seen.has_finalizer:
        return Plan()
    living = [group for group in seen.groups if group.deleting_since is None]
    retirements = [plan_retirement(seen, group, "Deletion", now) for group in living]
    if seen.groups or seen.leftovers or has_removable(seen):
        return plan_removal(seen, children).join(*retirements, Plan(again_s=ENDING_RETRY_S))
    return Plan((RemoveFinalizer(),))


def _plan_groups(seen: Observed, spec: Spec, now: datetime) -> Plan:
    """End what is too many; then fill, repair and roll out each role by itself."""
    places = choose_places(seen, spec)
    planned = [plan_retirement(seen, group, "ScaleDown", now) for group in places.surplus]
    for role_places in places.roles:
        planned += [plan_place(seen, spec, place, now) for place in role_places]
        planned.append(plan_rollout(seen, spec, role_places, now))
    return Plan().join(*planned)
