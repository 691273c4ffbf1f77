"""What a person has to look at, the most urgent first. Pure; each message says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lockstep_operator.api.status import GroupStatus, Status
from lockstep_operator.groups.state import ACCEPT_LIMIT_S, Observed


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    status: bool
    reason: str
    message: str


def judge_platform(seen: Observed, now: datetime) -> Verdict:
    """Judge whether MPIJobs are served and taken up."""
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


def find_trouble(seen: Observed, draft: Status, conflicts: tuple[str, ...], platform: Verdict) -> Verdict | None:
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


def _describe_exhausted(groups: list[GroupStatus]) -> Verdict:
    group = groups[0]
    failure = group.last_failure
    reason = "RestartBudgetExceeded"
    if failure is not None and failure.reason == "InvalidConfiguration":
        reason = failure.reason
    return Verdict(True, reason, f"{_describe_failure(group)}; {group.message}, or as soon as the spec changes")


def _describe_failure(group: GroupStatus) -> str:
    failure = group.last_failure
    if failure is None:
        return f"group {group.name} is broken"
    details = [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    details += [f"rank {failure.rank}"] if failure.rank is not None else []
    details += [f"node {failure.node}"] if failure.node else []
    where = f" ({', '.join(details)})" if details else ""
    return f"group {group.name} broke: {failure.reason}{where}: {failure.message}"
