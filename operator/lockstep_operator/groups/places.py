"""Which groups a deployment keeps, role by role. Pure; `plan` and `status` share the answer.

A place is one of a role's wanted groups; its index is part of its group's name. Over time a place holds one group
after the other: at most one that lives, and perhaps older ones whose pods are still ending.

Three things hold for every answer:
- a role has exactly as many places as it wants groups, each with another index;
- every living group is held by one place or is surplus, never both; of two living groups of one index one is surplus;
- an index that has a group, or a failure in the status, is taken before a free one. So a place that waits for its
  group to end, or for its backoff, is not left for a fresh index that would know nothing of its failures.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep_operator.api.spec import Role, Spec
from lockstep_operator.api.status import GroupStatus
from lockstep_operator.groups.health import is_ready
from lockstep_operator.groups.revision import compute_revision
from lockstep_operator.groups.state import Group, Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One of a role's wanted groups."""

    role: Role
    revision: str
    """The role's current revision."""
    index: int
    group: Group | None
    """The group that lives there."""
    ending: tuple[Group, ...]
    """Earlier groups that are being deleted."""
    history: GroupStatus | None
    """What the status remembers; None when it is of another revision than the place's group or, without one, the
    role's. So a change of the spec forgives earlier failures.
    """

    @property
    def is_updated(self) -> bool:
        """The living group is of the current revision."""
        return self.group is not None and self.group.revision == self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The wanted places of each role, in the spec's order, and the living groups that none of them holds."""

    roles: tuple[tuple[Place, ...], ...]
    surplus: tuple[Group, ...]

    @property
    def wanted(self) -> tuple[Place, ...]:
        """The places of all roles."""
        return tuple(place for places in self.roles for place in places)


def choose_places(seen: Observed, spec: Spec) -> Places:
    """Choose which groups stay, which are too many, and where new ones go.

    Too many are first those whose drain began, then those that are not ready, then those with the highest index;
    groups of a role that is not in the spec are all too many. Without the first rule a scale-down in the middle of a
    rollout would keep a group that ends anyway, and drain another one besides.
    """
    roles = tuple(_choose_role_places(seen, role, compute_revision(spec, role), spec) for role in spec.roles)
    kept = {place.group.uid for places in roles for place in places if place.group is not None}
    surplus = tuple(group for group in seen.groups if group.deleting_since is None and group.uid not in kept)
    return Places(roles=roles, surplus=surplus)


def _choose_role_places(seen: Observed, role: Role, revision: str, spec: Spec) -> tuple[Place, ...]:
    replicas = spec.count_replicas(role)
    groups = [group for group in seen.groups if group.role == role.name]
    living = {group.index: group for group in groups if group.deleting_since is None}
    broken = {entry.index for entry in seen.before.groups if entry.role == role.name and entry.last_failure}
    known = {group.index for group in groups} | broken
    taken = sorted(known, key=lambda index: (_rank_place(living.get(index)), index))[:replicas]
    free = [index for index in range(replicas + len(known)) if index not in known]
    indices = sorted([*taken, *free[: replicas - len(taken)]])
    return tuple(_build_place(seen, role, revision, index, living.get(index)) for index in indices)


def _rank_place(group: Group | None) -> int:
    """Order places by how much is lost with them: ready groups, then starting ones, empty ones, draining ones."""
    if group is None:
        return 2
    if group.is_draining:
        return 3
    return 0 if is_ready(group) else 1


def _build_place(seen: Observed, role: Role, revision: str, index: int, group: Group | None) -> Place:
    history = seen.find_history(role.name, index)
    owner = revision if group is None else group.revision
    if history is not None and history.revision != owner:
        history = None
    same_place = [entry for entry in seen.groups if (entry.role, entry.index) == (role.name, index)]
    ending = tuple(entry for entry in same_place if entry.deleting_since is not None)
    return Place(role=role, revision=revision, index=index, group=group, ending=ending, history=history)
