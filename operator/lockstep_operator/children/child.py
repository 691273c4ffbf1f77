"""What is said of a kind of child, once.

`observe`, `plan.children`, `apply` and the watches read it; none of them knows a kind of standing child by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from lockstep_operator.api.spec import Spec
from lockstep_operator.groups.state import Group
from lockstep_operator.kinds import Kind, Object


class ListWanted(Protocol):
    """Lists the manifests of a kind that a deployment has now."""

    def __call__(self, spec: Spec, *, deployment: str, namespace: str, groups: tuple[Group, ...]) -> list[Object]:
        """List the manifests, without owner references; each carries `names.build_labels`, or it is not seen again.

        Args:
            spec: the deployment's spec.
            deployment: its name.
            namespace: its namespace.
            groups: the groups that are there, the ending ones too; a child for one of them carries
                `names.LABEL_GROUP` and stays until the group has gone, even while the deployment is deleted.
        """


def lacks_part(wanted: Object, existing: Object) -> bool:
    """Whether a label or a part of the spec that we want is missing; what others added does not matter."""
    return not _has_all({part: item for part, item in wanted.items() if part not in {"apiVersion", "kind"}}, existing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One kind of child.

    It is created by server-side apply where its name is free, and updated in the same way; an object of that name
    that belongs to somebody else is never written.
    """

    kind: Kind
    list_wanted: ListWanted | None
    """The standing children; None for MPIJobs, which `plan.groups` makes and ends."""
    differs: Callable[[Object, Object], bool] | None = lacks_part
    """Whether an existing object (second) has to be updated to a manifest (first); None: it is never updated."""
    propagation: Literal["Background", "Foreground"] = "Background"
    """How it is deleted; with `Foreground` it is there until all that it owns has gone."""


def _has_all(wanted: object, existing: object) -> bool:
    if isinstance(wanted, dict):
        return isinstance(existing, dict) and all(_has_all(item, existing.get(key)) for key, item in wanted.items())
    if isinstance(wanted, list):
        return isinstance(existing, list) and len(wanted) == len(existing) and all(map(_has_all, wanted, existing))
    return wanted == existing
