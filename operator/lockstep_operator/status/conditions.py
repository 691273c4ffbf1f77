"""The five conditions and the phase. Each message says what to do where something has to be done. Pure."""

from __future__ import annotations

from datetime import datetime

from lockstep_operator.api.status import Condition, Status, format_time
from lockstep_operator.groups.state import Observed
from lockstep_operator.status.readiness import is_scaled_to_zero, judge_available, judge_progressing, judge_ready
from lockstep_operator.status.roles import RoleCounts
from lockstep_operator.status.trouble import Hindrances, Verdict, find_trouble, judge_platform


def build_conditions(
    seen: Observed, draft: Status, roles: tuple[RoleCounts, ...], hindrances: Hindrances, now: datetime
) -> tuple[Condition, ...]:
    """Build all conditions; a condition keeps its transition time while its answer stays."""
    platform = judge_platform(seen, hindrances, now)
    trouble = find_trouble(seen, draft, hindrances, platform)
    verdicts = {
        "Ready": judge_ready(seen, draft, roles, trouble),
        "Available": judge_available(seen, draft, roles),
        "Progressing": judge_progressing(seen, draft, roles, trouble),
        "Degraded": trouble or Verdict(False, "AsExpected", "no group is broken"),
        "PlatformReady": platform,
    }
    return tuple(_build_condition(seen, kind, verdict, now) for kind, verdict in verdicts.items())


def choose_phase(seen: Observed, roles: tuple[RoleCounts, ...], conditions: tuple[Condition, ...]) -> str:
    """Choose the one word for people."""
    true = {condition.type for condition in conditions if condition.status == "True"}
    if seen.deleting:
        return "Deleting"
    if "Degraded" in true:
        return "Degraded"
    if seen.spec is not None and is_scaled_to_zero(roles):
        return "ScaledToZero"
    if "Ready" in true:
        return "Ready"
    if seen.spec is not None and seen.spec.paused:
        return "Paused"
    return "Starting" if seen.groups else "Pending"


def _build_condition(seen: Observed, kind: str, verdict: Verdict, now: datetime) -> Condition:
    before = seen.before.find_condition(kind)
    answer = "True" if verdict.status else "False"
    same = before is not None and before.status == answer
    return Condition(
        type=kind,
        status=answer,
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=seen.generation,
        last_transition_time=before.last_transition_time if same and before is not None else format_time(now),
    )
