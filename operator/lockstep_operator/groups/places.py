"""Which groups a deployment keeps. Pure; `plan` and `status` share the answer.

A place is one of a role's `replicas`; its index is part of its group's name. Over time a place holds one group after
the other: at most one that lives, and perhaps an older one whose pods are still ending.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep_operator.decide.diagnose import is_ready
from lockstep_operator.decide.revision import compute_revision
from lockstep_operator.decide.state import Group, Observed
from lockstep_operator.resource.record import GroupRecord
from lockstep_operator.resource.spec import Role, Spec


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
    record: GroupRecord | None
    """What the status remembers; None when it is of another revision than the place's group or, without one, the
    role's.
    """

    @property
    def is_updated(self) -> bool:
        """The living group is of the current revision."""
        return self.group is not None and self.group.revision == self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The wanted places, and the living groups that none of them holds."""

    wanted: tuple[Place, ...]
    surplus: tuple[Group, ...]


def choose_places(seen: Observed, spec: Spec) -> Places:
    """Choose which groups stay, which are too many, and where new ones go.

    Too many are first those that are not ready, then those with the highest index; groups of a role that is not in
    the spec are all too many. A group whose drain began stays chosen for removal.
    """
    wanted: list[Place] = []
    for role in spec.roles:
        wanted += _choose_role_places(seen, role, compute_revision(spec, role), spec.replicas)
    kept = {place.group.uid for place in wanted if place.group is not None}
    surplus = tuple(group for group in seen.groups if group.deleting_since is None and group.uid not in kept)
    return Places(wanted=tuple(wanted), surplus=surplus)


def _choose_role_places(seen: Observed, role: Role, revision: str, replicas: int) -> list[Place]:
    groups = [group for group in seen.groups if group.role == role.name]
    living = {group.index: group for group in groups if group.deleting_since is None}
    broken = {record.index for record in seen.before.groups if record.role == role.name and record.last_failure}
    known = {group.index for group in groups} | broken
    taken = sorted(known, key=lambda index: (_rank_place(living.get(index)), index))[:replicas]
    free = [index for index in range(replicas + len(known)) if index not in known]
    indices = sorted([*taken, *free[: replicas - len(taken)]])
    return [_build_place(seen, role, revision, index, living.get(index)) for index in indices]


def _rank_place(group: Group | None) -> int:
    """Order places by how much is lost with them: ready groups, then starting ones, empty ones, draining ones."""
    if group is None:
        return 2
    if group.is_draining:
        return 3
    return 0 if is_ready(group) else 1


def _build_place(seen: Observed, role: Role, revision: str, index: int, group: Group | None) -> Place:
    record = seen.find_record(role.name, index)
    owner = revision if group is None else group.revision
    if record is not None and record.revision != owner:
        record = None
    same_place = [entry for entry in seen.groups if (entry.role, entry.index) == (role.name, index)]
    ending = tuple(entry for entry in same_place if entry.deleting_since is not None)
    return Place(role=role, revision=revision, index=index, group=group, ending=ending, record=record)
