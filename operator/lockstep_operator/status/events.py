"""Kubernetes Events for what changed between two statuses: one per transition, so nothing is said twice. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lockstep_operator import names
from lockstep_operator.api.status import Condition, GroupStatus, Status
from lockstep_operator.groups.state import Observed

MAX_NOTE = 1000
WARNING = {("Ready", "False"), ("Degraded", "True"), ("PlatformReady", "False")}
QUIET_REASONS = {"GroupsNotReady", "Deleting", "ScaledToZero", "Paused"}
"""Not being ready for these reasons is nothing to warn of."""


@dataclass(frozen=True, slots=True)
class Note:
    """What an Event says."""

    type: str
    reason: str
    text: str


def list_notes(before: Status, after: Status) -> list[Note]:
    """List what changed: conditions that turned or have another reason, and groups that broke."""
    notes = [_describe_failure(group) for group in after.groups if _is_new_failure(before, group)]
    for condition in after.conditions:
        previous = before.find_condition(condition.type)
        if previous is None or (previous.status, previous.reason) != (condition.status, condition.reason):
            note = _describe_turn(previous, condition)
            if note is not None and note not in notes:
                notes.append(note)
    return notes


def build_event(seen: Observed, note: Note, now: datetime) -> dict[str, Any]:
    """Build the Event object for a note on a deployment."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    digest = hashlib.sha256(f"{seen.uid}/{stamp}/{note}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{seen.name}.{digest}", "namespace": seen.namespace},
        "eventTime": stamp,
        "reportingController": f"{names.API_GROUP}/operator",
        "reportingInstance": names.FIELD_MANAGER,
        "action": "Reconcile",
        "type": note.type,
        "reason": note.reason,
        "note": note.text[:MAX_NOTE],
        "regarding": {
            "apiVersion": f"{names.API_GROUP}/{names.API_VERSION}",
            "kind": names.KIND,
            "namespace": seen.namespace,
            "name": seen.name,
            "uid": seen.uid,
        },
    }


def _describe_turn(previous: Condition | None, condition: Condition) -> Note | None:
    """Say that a condition turned; the usual state of a new deployment is no news."""
    is_warning = (condition.type, condition.status) in WARNING and condition.reason not in QUIET_REASONS
    is_good = condition.type == "Ready" and condition.status == "True"
    was_bad = previous is not None and (previous.type, previous.status) in WARNING
    if not (is_warning or is_good or was_bad):
        return None
    return Note("Warning" if is_warning else "Normal", condition.reason, condition.message or condition.reason)


def _is_new_failure(before: Status, group: GroupStatus) -> bool:
    failure = group.last_failure
    if failure is None:
        return False
    return all(old.last_failure is None or old.last_failure.uid != failure.uid for old in before.groups)


def _describe_failure(group: GroupStatus) -> Note:
    failure = group.last_failure
    assert failure is not None
    where = f" on node {failure.node}" if failure.node else ""
    code = f", exit code {failure.exit_code}" if failure.exit_code is not None else ""
    return Note("Warning", failure.reason, f"group {group.name} broke{where}{code}: {failure.message}")
