"""Each role's counts, and their sums. Pure.

wanted    groups that the spec asks for
living    groups with an MPIJob that is not being deleted
ready     of them, those that serve, whatever their revision
updated   of them, those of the role's current revision
fresh     of them, those that are both
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep_operator.api.spec import Role, Spec
from lockstep_operator.api.status import GroupStatus, RoleStatus
from lockstep_operator.children.service import build_url
from lockstep_operator.groups.revision import compute_revision
from lockstep_operator.groups.state import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCounts:
    """How far a role is."""

    role: Role
    revision: str
    wanted: int
    groups: tuple[GroupStatus, ...]
    """All entries of the role: living groups, ending ones, and places that wait."""

    @property
    def living(self) -> tuple[GroupStatus, ...]:
        """Groups that exist and are not being deleted."""
        return tuple(group for group in self.groups if group.uid and group.state != "Terminating")

    @property
    def num_ready(self) -> int:
        """Groups that serve."""
        return sum(group.state == "Ready" for group in self.living)

    @property
    def num_updated(self) -> int:
        """Groups of the current revision."""
        return sum(group.revision == self.revision for group in self.living)

    @property
    def num_fresh(self) -> int:
        """Groups of the current revision that serve."""
        return sum(group.state == "Ready" and group.revision == self.revision for group in self.living)

    @property
    def is_exhausted(self) -> bool:
        """One of its places may not be filled before its restart window has moved on."""
        return any(group.state == "Exhausted" for group in self.groups)


def count_roles(spec: Spec, groups: tuple[GroupStatus, ...]) -> tuple[RoleCounts, ...]:
    """Count each role by itself, in the spec's order; groups of a role that is not in the spec count nowhere."""
    return tuple(
        RoleCounts(
            role=role,
            revision=compute_revision(spec, role),
            wanted=spec.count_replicas(role),
            groups=tuple(group for group in groups if group.role == role.name),
        )
        for role in spec.roles
    )


def describe_role(seen: Observed, counts: RoleCounts) -> RoleStatus:
    """Describe a role as the status shows it."""
    failures = [group.last_failure for group in counts.groups if group.last_failure is not None]
    return RoleStatus(
        name=counts.role.name,
        replicas=len(counts.living),
        ready_replicas=counts.num_ready,
        updated_replicas=counts.num_updated,
        revision=counts.revision,
        nodes_per_group=counts.role.num_nodes,
        url=build_url(counts.role, deployment=seen.name, namespace=seen.namespace),
        restarts=sum(group.restarts for group in counts.groups),
        last_failure=max(failures, key=lambda failure: failure.time, default=None),
    )
