"""What `plan` may ask for and `apply` can do, one small frozen type an action."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep_operator.children.child import Child
from lockstep_operator.groups.state import Group, Pod
from lockstep_operator.kinds import Kind, Object


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Hold the deployment until its groups are drained."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Nothing is left: let the deployment go."""


@dataclass(frozen=True, slots=True)
class CreateChild:
    """Make a child."""

    child: Child
    manifest: Object


@dataclass(frozen=True, slots=True)
class UpdateChild:
    """Put a child of ours right again."""

    child: Child
    manifest: Object
    resource_version: str
    """What it was when it was read; an update of any other is a conflict."""


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Delete a child of ours with all that hangs on it."""

    child: Child
    name: str
    uid: str
    reason: str = ""
    """Why a group ends, in one CamelCase word: a failure's reason, or `Rollout`, `ScaleDown`, `Deletion`."""
    is_repair: bool = False
    """The group is broken; counts as a restart."""


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


Action = AddFinalizer | RemoveFinalizer | CreateChild | UpdateChild | DeleteChild | EndTraffic | StartDrain


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in their order, when to look again although nothing happened, and what could not be asked for."""

    actions: tuple[Action, ...] = ()
    again_s: float | None = None
    missing: tuple[Kind, ...] = ()
    """Kinds of which children are wanted and whose API is not served."""

    @property
    def changes_deployment(self) -> bool:
        """The deployment itself is written, so that what was read of it is out of date."""
        return any(isinstance(action, (AddFinalizer, RemoveFinalizer)) for action in self.actions)

    def join(self, *others: Plan) -> Plan:
        """Do all in their order; look again at the earliest time."""
        plans = (self, *others)
        times = [plan.again_s for plan in plans if plan.again_s is not None]
        return Plan(
            actions=tuple(action for plan in plans for action in plan.actions),
            again_s=min(times, default=None),
            missing=tuple(kind for plan in plans for kind in plan.missing),
        )
