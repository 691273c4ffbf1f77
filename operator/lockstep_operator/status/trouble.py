"""What a person has to look at, the most urgent first. Pure; each message says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lockstep_operator.api.status import MAX_CONDITION, GroupStatus, Status
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.groups.state import ACCEPT_LIMIT_S, Observed
from lockstep_operator.kinds import Kind

CHILD_API_MISSING = "ChildAPIMissing"
"""The reason of a lack with which groups go on."""
EXHAUSTED = ("RestartBudgetExceeded", "InvalidConfiguration")
"""Reasons for which a role makes no more groups for now; other roles may."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition without its times."""

    status: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Hindrances:
    """What kept a pass from making all that is wanted."""

    conflicts: tuple[str, ...] = ()
    """Names of objects (`Service x`) that should be ours and belong to somebody else."""
    missing: tuple[Kind, ...] = ()
    """Kinds of standing children that are wanted and whose API is not served."""


def judge_platform(seen: Observed, hindrances: Hindrances, now: datetime) -> Verdict:
    """Judge whether MPIJobs are served and taken up, and whether all other children can be made."""
    if not seen.is_served(MPIJOB.kind):
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
    if hindrances.missing:
        kinds = ", ".join(f"{kind.api_version} {kind.name}" for kind in hindrances.missing)
        return Verdict(
            False, CHILD_API_MISSING, f"not served: {kinds}; groups go on without it: install what serves it"
        )
    return Verdict(True, "MPIJobServed", "the MPIJob API is served")


def find_trouble(seen: Observed, draft: Status, hindrances: Hindrances, platform: Verdict) -> Verdict | None:
    """Find what a person has to look at; None when all goes its way."""
    if seen.deleting:
        return None
    if seen.problems:
        return Verdict(True, "InvalidSpec", "; ".join(seen.problems)[:1024])
    if hindrances.conflicts:
        text = (
            f"{', '.join(hindrances.conflicts)} belongs to somebody else and is left alone: delete it, or rename this "
            "deployment"
        )
        return Verdict(True, "Conflict", text)
    if not platform.status and platform.reason != CHILD_API_MISSING:
        return Verdict(True, platform.reason, platform.message)
    of_groups = _find_group_trouble(draft)
    if of_groups is not None:
        return of_groups
    return None if platform.status else Verdict(True, platform.reason, platform.message)


def _find_group_trouble(draft: Status) -> Verdict | None:
    """Find the groups that are in trouble, of each role the worst one."""
    worst: dict[str, GroupStatus] = {}
    exhausted = [group for group in draft.groups if group.state == "Exhausted"]
    broken = [group for group in draft.groups if group.state in {"Broken", "BackingOff"}]
    for group in [*exhausted, *broken]:
        worst.setdefault(group.role, group)
    if not worst:
        return None
    reason = _name_exhaustion(exhausted[0]) if exhausted else "GroupBroken"
    if len(worst) == 1:
        return Verdict(True, reason, _describe_group(*worst.values()))
    room = MAX_CONDITION // len(worst) - len("; ")
    told = (f"role {role}: {_describe_group(group)}"[:room] for role, group in sorted(worst.items()))
    return Verdict(True, reason, "; ".join(told))


def _name_exhaustion(group: GroupStatus) -> str:
    budget, configuration = EXHAUSTED
    failure = group.last_failure
    return configuration if failure is not None and failure.reason == configuration else budget


def _describe_group(group: GroupStatus) -> str:
    """Say why a group broke, and when there will be another one."""
    if group.state == "Exhausted":
        return f"{_describe_failure(group)}; {group.message}, or as soon as the spec changes"
    return f"{_describe_failure(group)}; it will be replaced"


def _describe_failure(group: GroupStatus) -> str:
    failure = group.last_failure
    if failure is None:
        return f"group {group.name} is broken"
    details = [f"exit code {failure.exit_code}"] if failure.exit_code is not None else []
    details += [f"rank {failure.rank}"] if failure.rank is not None else []
    details += [f"node {failure.node}"] if failure.node else []
    where = f" ({', '.join(details)})" if details else ""
    return f"group {group.name} broke: {failure.reason}{where}: {failure.message}"
