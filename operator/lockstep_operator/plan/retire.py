"""How a healthy group is ended: traffic first, then its requests, then the group. Pure."""

from __future__ import annotations

from datetime import datetime

from lockstep_operator.decide.actions import DeleteGroup, EndTraffic, Plan, StartDrain
from lockstep_operator.decide.diagnose import find_failure
from lockstep_operator.decide.state import Group, Observed
from lockstep_operator.resource.record import format_time

DRAIN_POLL_S = 1.0


def plan_retirement(seen: Observed, group: Group, reason: str, now: datetime) -> Plan:
    """Plan the next step of a group's end.

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
    is_broken = find_failure(group, seen.find_record(group.role, group.index), format_time(now)) is not None
    if launcher is None or is_broken or not (launcher.ready or launcher.draining_since):
        return Plan((DeleteGroup(group, reason),))
    if launcher.draining_since is None:
        return Plan((EndTraffic(group, launcher),), again_s=DRAIN_POLL_S)
    waited_s = (now - launcher.draining_since).total_seconds()
    drain = group.drain
    if waited_s >= seen.drain_timeout_s or (drain is not None and drain.draining and drain.in_flight == 0):
        return Plan((DeleteGroup(group, reason),))
    if drain is not None and not drain.draining and launcher.ip:
        return Plan((StartDrain(group, launcher.ip),), again_s=DRAIN_POLL_S)
    return Plan(again_s=DRAIN_POLL_S)
