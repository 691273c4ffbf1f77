"""What the operator writes into a deployment's status, as frozen dataclasses.

Most of it is for people. Three things the operator also reads back, because nothing else in the cluster can hold
them: a group's failures (its MPIJob is gone by then), the worker pods it started with, and when a condition last
turned.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lockstep_operator.api import decode
from lockstep_operator.api.fields import described
from lockstep_operator.errors import SpecError

CONDITION_TYPES = ("Ready", "Available", "Progressing", "Degraded", "PlatformReady")
GROUP_STATES = ("Pending", "Starting", "Ready", "Draining", "Terminating", "Broken", "BackingOff", "Exhausted")
PHASES = ("Pending", "Starting", "Ready", "Degraded", "Paused", "ScaledToZero", "Deleting")
MAX_MESSAGE = 1024
MAX_CONDITION = 4 * MAX_MESSAGE
"""Characters of a condition's message."""
MAX_FAILURES = 101
"""Failures remembered of one group: one more than `restartPolicy.maxRestarts` can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One answer to one question about the deployment."""

    type: str = described("Which question.", enum=CONDITION_TYPES)
    status: str = described("The answer.", enum=("True", "False", "Unknown"))
    reason: str = described("Why, in one CamelCase word.", default="")
    message: str = described("Why, and what to do about it.", default="", max_length=MAX_CONDITION)
    observed_generation: int = described("The generation of the spec that this was said of.", default=0)
    last_transition_time: str = described("When the answer last changed.", default="", format="date-time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a group broke."""

    reason: str = described("Why, in one CamelCase word, such as Hang, RankCrash, WorkerReplaced, Evicted.")
    time: str = described("When it was noticed.", format="date-time")
    uid: str = described("The UID of the MPIJob that broke.", default="")
    exit_code: int | None = described("The exit code of the container that ended.", default=None)
    rank: int | None = described("The rank at fault, where it is known.", default=None)
    node: str | None = described("The node at fault, where it is known.", default=None)
    message: str = described("What the group or Kubernetes said.", default="", max_length=MAX_MESSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One group, or the place of one that waits for its replacement."""

    name: str = described("The MPIJob's name.")
    role: str = described("The group's role.", default="")
    index: int = described("Which of the role's groups this is.", default=0)
    revision: str = described("The revision that the group was made from.", default="")
    state: str = described("What the group is doing.", default="Pending", enum=GROUP_STATES)
    message: str = described("What the group waits for.", default="", max_length=MAX_MESSAGE)
    uid: str = described("The MPIJob's UID; empty while there is none.", default="")
    workers: tuple[str, ...] = described(
        "UIDs of the worker pods that the group started with; another one means that the group is broken.",
        default=(),
        max_items=100,
    )
    nodes: tuple[str, ...] = described("Nodes of the group's pods, the launcher's first.", default=(), max_items=101)
    restarts: int = described("How often the group of this place was replaced since its revision came.", default=0)
    failures: tuple[str, ...] = described(
        "When groups of this place broke, within the restart window.", default=(), max_items=MAX_FAILURES
    )
    last_failure: Failure | None = described("The latest of them.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """One role's count of groups."""

    name: str = described("The role's name.")
    replicas: int = described("Groups that exist.", default=0)
    ready_replicas: int = described("Groups that are ready.", default=0)
    updated_replicas: int = described("Groups of the current revision.", default=0)
    revision: str = described("The current revision.", default="")
    nodes_per_group: int = described("Nodes that one group takes.", default=0)
    url: str = described("Where the role is reached within the cluster.", default="")
    restarts: int = described("Sum of the groups' restarts.", default=0)
    last_failure: Failure | None = described("The latest failure of any group.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What there is."""

    observed_generation: int = described("The generation of the spec that this status is of.", default=0)
    phase: str = described(
        "The whole in one word, for people; programs read the conditions.", default="Pending", enum=PHASES
    )
    conditions: tuple[Condition, ...] = described("Answers to set questions.", default=(), map_key="type")
    replicas: int = described("Groups that exist of the role that `spec.replicas` scales.", default=0)
    ready_replicas: int = described("Of these, groups that are ready.", default=0)
    updated_replicas: int = described("Of these, groups of the current revision.", default=0)
    ready_groups: str = described("Ready of wanted groups of all roles, such as 1/2.", default="")
    nodes: int = described("Nodes that the wanted groups of all roles take.", default=0)
    selector: str = described(
        "Selects the pods of the role that `spec.replicas` scales that take traffic.", default="", max_length=512
    )
    revision: str = described("The current revision of the first role.", default="")
    url: str = described("Where the deployment is reached within the cluster.", default="", max_length=512)
    roles: tuple[RoleStatus, ...] = described("One entry a role.", default=(), map_key="name")
    groups: tuple[GroupStatus, ...] = described("One entry a group.", default=(), max_items=256, map_key="name")

    def find_condition(self, kind: str) -> Condition | None:
        """Find a condition by its type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


def read_status(raw: Any) -> Status:
    """Read a status that was written earlier; one that an incompatible version wrote counts as none."""
    try:
        return decode.parse(Status, raw or {}, "status")
    except SpecError:
        return Status()


def parse_time(text: str) -> datetime:
    """Parse a time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    """Write a time as Kubernetes does, in UTC and whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
