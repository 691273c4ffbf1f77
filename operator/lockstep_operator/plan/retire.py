"""How a healthy group is ended: traffic first, then its requests, then the group. Pure.

    serves -> EndTraffic -> StartDrain -> (requests finish, or the drain's time is up) -> DeleteChild

Each arrow is another pass, and where a group stands is read from the cluster alone: `draining_since` stands at the
launcher pod, `drain` is what the launcher says. So the order holds across restarts of the operator. There is no way
back: an engine that was told to drain serves no more, so its group is replaced even when it is wanted again.
"""

from __future__ import annotations

from datetime import datetime

from lockstep_operator.api.status import format_time
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.groups.health import find_failure
from lockstep_operator.groups.state import Group, Observed
from lockstep_operator.plan.actions import DeleteChild, EndTraffic, Plan, StartDrain

DRAIN_POLL_S = 1.0


def plan_retirement(seen: Observed, group: Group, reason: str, now: datetime) -> Plan:
    """Plan what comes next in a group's end.

    A group that serves nobody (it is broken, or its launcher was never Ready) is deleted at once. Otherwise the
    launcher leaves the Service, is told to drain, and the group is deleted when nothing is in flight or the time is
    up. When the drain began stands at the launcher pod, so that a restart of the operator changes nothing.

    Args:
        seen: what is there.
        group: a group that is not being deleted.
        reason: why it ends.
        now: the time, with a time zone.
    """
    launcher = group.launcher
    is_broken = find_failure(group, seen.find_history(group.role, group.index), format_time(now)) is not None
    if launcher is None or is_broken or not (launcher.ready or launcher.draining_since):
        return Plan((delete_group(group, reason),))
    if launcher.draining_since is None:
        return Plan((EndTraffic(group, launcher),), again_s=DRAIN_POLL_S)
    waited_s = (now - launcher.draining_since).total_seconds()
    drain = group.drain
    if waited_s >= seen.drain_timeout_s or (drain is not None and drain.draining and drain.in_flight == 0):
        return Plan((delete_group(group, reason),))
    if drain is not None and not drain.draining and launcher.ip:
        return Plan((StartDrain(group, launcher.ip),), again_s=DRAIN_POLL_S)
    return Plan(again_s=DRAIN_POLL_S)


def delete_group(group: Group, reason: str, *, is_repair: bool = False) -> DeleteChild:
    """Ask for the end of a group's MPIJob."""
    return DeleteChild(MPIJOB, group.name, group.uid, reason, is_repair)
