"""The five conditions and the phase. Each message says what to do where something has to be done. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lockstep_operator.decide.state import ACCEPT_LIMIT_S, Observed
from lockstep_operator.resource.record import Condition, GroupRecord, Status, format_time
from lockstep_operator.resource.spec import Spec


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    status: bool
    reason: str
    message: str


def build_conditions(seen: Observed, draft: Status, conflicts: tuple[str, ...], now: datetime) -> tuple[Condition, ...]:
    """Build all conditions; a condition keeps its transition time while its answer stays."""
    platform = _judge_platform(seen, now)
    trouble = _find_trouble(seen, draft, conflicts, platform)
    verdicts = {
        "Ready": _judge_ready(seen, draft, trouble),
        "Available": _judge_available(seen, draft),
        "Progressing": _judge_progressing(seen, draft, trouble),
        "Degraded": trouble or Verdict(False, "AsExpected", "no group is broken"),
        "PlatformReady": platform,
    }
    return tuple(_build_condition(seen, kind, verdict, now) for kind, verdict in verdicts.items())


def choose_phase(seen: Observed, conditions: tuple[Condition, ...]) -> str:
    """Choose the one word for people."""
    true = {condition.type for condition in conditions if condition.status == "True"}
    if seen.deleting:
        return "Deleting"
    if "Degraded" in true:
        return "Degraded"
    if seen.spec is not None and seen.spec.replicas == 0:
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


def _judge_platform(seen: Observed, now: datetime) -> Verdict:
    if not seen.mpijobs_served:
        return Verdict(
            False,
            "MPIJobCRDMissing",
            "the API kubeflow.org/v2beta1 MPIJob is not served: install kubeflow mpi-operator v0.8 or newer",
        )
    ignored = [
        group.name
        for group in seen.groups
        if not group.accepted
        and group.deleting_since is None
        and (now - group.created).total_seconds() >= ACCEPT_LIMIT_S
    ]
    if ignored:
        return Verdict(
            False,
            "MPIJobNotAccepted",
            f"mpi-operator has not accepted {', '.join(ignored)} within {ACCEPT_LIMIT_S} s: see that it runs and "
            f"watches this namespace, and `kubectl describe mpijob {ignored[0]}` for a ValidationError",
        )
    return Verdict(True, "MPIJobServed", "the MPIJob API is served")


def _find_trouble(seen: Observed, draft: Status, conflicts: tuple[str, ...], platform: Verdict) -> Verdict | None:
    """Find what a person has to look at; None when all goes its way."""
    if seen.deleting:
        return None
    if seen.problems:
        return Verdict(True, "InvalidSpec", "; ".join(seen.problems)[:1024])
    if conflicts:
        text = (
            f"{', '.join(conflicts)} belongs to somebody else and is left alone: delete it, or rename this deployment"
        )
        return Verdict(True, "Conflict", text)
    if not platform.status:
        return Verdict(True, platform.reason, platform.message)
    exhausted = [group for group in draft.groups if group.state == "Exhausted"]
    if exhausted:
        return _describe_exhausted(exhausted)
    broken = [group for group in draft.groups if group.state in {"Broken", "BackingOff"}]
    if broken:
        return Verdict(True, "GroupBroken", f"{_describe_failure(broken[0])}; it will be replaced")
    return None


def _describe_exhausted(groups: list[GroupRecord]) -> Verdict:
    group = groups[0]
    failure = group.last_failure
    reason = "RestartBudgetExceeded"
    if failure is not None and failure.reason == "InvalidConfiguration":
        reason = failure.reason
    return Verdict(True, reason, f"{_describe_failure(group)}; {group.message}, or as soon as the spec changes")


def _describe_failure(group: GroupRecord) -> str:
    failure = group.last_failure
    if failure is None:
        return f"group {group.name} is broken"
    details = [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    details += [f"rank {failure.rank}"] if failure.rank is not None else []
    details += [f"node {failure.node}"] if failure.node else []
    where = f" ({', '.join(details)})" if details else ""
    return f"group {group.name} broke: {failure.reason}{where}: {failure.message}"


def _judge_ready(seen: Observed, draft: Status, trouble: Verdict | None) -> Verdict:
    if seen.deleting:
        return Verdict(False, "Deleting", _describe_deletion(seen, draft))
    spec = seen.spec
    if spec is None:
        return Verdict(False, "InvalidSpec", trouble.message if trouble else "")
    if spec.replicas == 0:
        return Verdict(False, "ScaledToZero", "spec.replicas is 0: no group serves")
    fresh = sum(group.state == "Ready" and group.revision == draft.revision for group in draft.groups)
    if fresh >= spec.replicas and not _has_conflict(trouble):
        return Verdict(True, "AllGroupsReady", f"{fresh} of {spec.replicas} groups are ready")
    if trouble is not None:
        return Verdict(False, trouble.reason, trouble.message)
    if spec.paused:
        return Verdict(False, "Paused", "spec.paused is true: groups are left as they are")
    waiting = [group for group in draft.groups if group.state not in {"Ready", "Terminating"}]
    detail = f"; {waiting[0].name} {waiting[0].message}" if waiting and waiting[0].message else ""
    return Verdict(
        False, "GroupsNotReady", f"{fresh} of {spec.replicas} groups of the current revision are ready{detail}"
    )


def _has_conflict(trouble: Verdict | None) -> bool:
    return trouble is not None and trouble.reason == "Conflict"


def _describe_deletion(seen: Observed, draft: Status) -> str:
    left = [f"{group.name} {group.message}" for group in draft.groups if group.message]
    left += [f"pod {pod.name}" for pod in seen.leftovers]
    return f"being deleted: {left[0]}" if left else "being deleted"


def _judge_available(seen: Observed, draft: Status) -> Verdict:
    spec = seen.spec
    if seen.deleting or spec is None:
        return Verdict(
            draft.ready_replicas > 0 and not seen.deleting, "InvalidSpec" if spec is None else "Deleting", ""
        )
    least = _count_least(spec)
    text = f"{draft.ready_replicas} groups are ready, {least} are needed"
    if spec.replicas == 0:
        return Verdict(False, "ScaledToZero", "spec.replicas is 0: no group serves")
    enough = draft.ready_replicas >= least
    return Verdict(enough, "EnoughGroupsReady" if enough else "TooFewGroupsReady", text)


def _count_least(spec: Spec) -> int:
    """Count the groups that must serve for the deployment to be of use."""
    return max(1, spec.replicas - spec.rollout.max_unavailable)


def _judge_progressing(seen: Observed, draft: Status, trouble: Verdict | None) -> Verdict:
    if seen.deleting:
        return Verdict(True, "Deleting", "groups are drained and removed")
    spec = seen.spec
    if spec is None:
        return Verdict(False, "InvalidSpec", "nothing is done until the spec is right")
    if spec.paused:
        return Verdict(False, "Paused", "spec.paused is true: groups are left as they are")
    if trouble is not None and trouble.reason not in {"GroupBroken", "MPIJobNotAccepted"}:
        return Verdict(False, trouble.reason, trouble.message)
    done = draft.updated_replicas == draft.ready_replicas == spec.replicas == len(draft.groups)
    if done:
        return Verdict(False, "Complete", "all groups are ready and of the current revision")
    if draft.updated_replicas < draft.replicas:
        left = draft.replicas - draft.updated_replicas
        return Verdict(True, "RollingOut", f"{left} groups of an older revision are left")
    return Verdict(True, "GroupsStarting", f"{draft.ready_replicas} of {spec.replicas} groups are ready")
