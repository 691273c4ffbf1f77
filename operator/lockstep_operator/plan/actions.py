"""What `plan` may ask for and `apply` can do, one small frozen type an action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep_operator.decide.state import Group, Pod


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Hold the deployment until its groups are drained."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Nothing is left: let the deployment go."""


@dataclass(frozen=True, slots=True)
class CreateService:
    """Make a role's Service."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class UpdateService:
    """Put a Service of ours right again."""

    manifest: dict[str, Any]
    resource_version: str


@dataclass(frozen=True, slots=True)
class DeleteService:
    """Remove a Service of ours."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Make a group's MPIJob."""

    manifest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EndTraffic:
    """Take a group's launcher out of its Service; the drain's clock starts."""

    group: Group
    launcher: Pod


@dataclass(frozen=True, slots=True)
class StartDrain:
    """Ask a group's launcher to finish its requests and take no more."""

    group: Group
    address: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a group's MPIJob with all that hangs on it."""

    group: Group
    reason: str
    """Why, in one CamelCase word: a failure's reason, or `Rollout`, `ScaleDown`, `Deletion`."""
    is_repair: bool = False
    """The group is broken; counts as a restart."""


Action = (
    AddFinalizer
    | RemoveFinalizer
    | CreateService
    | UpdateService
    | DeleteService
    | CreateGroup
    | EndTraffic
    | StartDrain
    | DeleteGroup
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in their order, and when to look again although nothing happened."""

    actions: tuple[Action, ...] = ()
    again_s: float | None = None

    @property
    def changes_deployment(self) -> bool:
        """The deployment itself is written, so that what was read of it is out of date."""
        return any(isinstance(action, (AddFinalizer, RemoveFinalizer)) for action in self.actions)

    def join(self, other: Plan) -> Plan:
        """Do both; look again at the earlier time."""
        times = [time for time in (self.again_s, other.again_s) if time is not None]
        return Plan(self.actions + other.actions, min(times, default=None))
