"""Kinds whose API is not served, groups that cannot be seen, and what of theirs must stay."""

from typing import Any

import pytest

from lockstep_operator import names
from lockstep_operator.api.status import Condition
from lockstep_operator.apply import describe
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.registry import CHILDREN
from support.cluster.deployments import build_two_roles
from support.cluster.more_children import SETTINGS
from support.worlds.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """One that is ready, with a ConfigMap of its own and one of its group."""
    monkeypatch.setattr(World, "kinds", (*CHILDREN, SETTINGS))
    world = World()
    world.settle()
    return world


def find(world: World, kind: str) -> Condition:
    condition = world.status.find_condition(kind)
    assert condition is not None
    return condition


def list_words(world: World) -> list[str]:
    return [describe(action) for action in world.plan().actions]


def list_settings(world: World) -> set[str]:
    return set(world.children[SETTINGS.kind])


def start_without(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> World:
    """One that came to rest in a cluster without ConfigMaps."""
    monkeypatch.setattr(World, "kinds", (SETTINGS, *CHILDREN))
    world = World(**spec)
    world.unserved = {SETTINGS.kind}
    world.settle()
    return world


def test_groups_go_on_without_a_kind_that_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    world = start_without(monkeypatch)
    assert find(world, "Ready").status == find(world, "Available").status == "True"
    assert find(world, "Progressing").reason == "Complete"
    assert world.plan().actions == ()


def test_it_is_told_by_its_name_and_passes_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = start_without(monkeypatch)
    for kind, answer in (("PlatformReady", "False"), ("Degraded", "True")):
        condition = find(world, kind)
        assert (condition.status, condition.reason) == (answer, "ChildAPIMissing")
        assert "v1 ConfigMap" in condition.message
    assert world.plan().again_s == 15
    world.unserved.clear()
    world.settle()
    assert "recall-settings" in list_settings(world)
    assert find(world, "PlatformReady").status == "True"
    assert find(world, "Degraded").status == "False"


def test_a_kind_of_which_nothing_is_wanted_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = start_without(monkeypatch, replicas=0)
    assert find(world, "PlatformReady").reason == "MPIJobServed"
    assert world.plan().again_s is None


def test_a_broken_group_is_told_before_a_kind_that_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = start_without(monkeypatch)
    world.end_pod(world.find_group())
    world.reconcile()
    assert find(world, "Degraded").reason == "GroupBroken"
    assert find(world, "Progressing").status == "True"


def test_no_child_of_a_group_goes_while_groups_cannot_be_seen(world: World) -> None:
    before = list_settings(world)
    world.unserved = {MPIJOB.kind}
    assert list_words(world) == []
    world.orphans = ()
    world.groups.clear()
    assert list_words(world) == []
    assert list_settings(world) == before
    world.unserved.clear()
    assert any(word.startswith("delete ConfigMap recall-main-") for word in list_words(world))


def test_the_child_of_a_group_stays_while_orphaned_pods_run(world: World) -> None:
    group = world.find_group()
    world.orphan(group)
    own = f"delete ConfigMap {group.name}-settings"
    assert own not in list_words(world)
    world.advance()
    assert own in list_words(world)


@pytest.mark.parametrize("unserved", [MPIJOB.kind, SETTINGS.kind], ids=lambda kind: kind.name)
def test_deletion_hangs_on_no_kind_that_is_not_served(world: World, unserved: Any) -> None:
    world.unserved = {unserved}
    if unserved is MPIJOB.kind:
        world.groups.clear()
    world.deleting = True
    world.settle()
    assert world.gone
    assert not world.services


def test_deletion_waits_for_pods_whose_group_cannot_be_seen(world: World) -> None:
    world.unserved = {MPIJOB.kind}
    world.deleting = True
    for _ in range(5):
        world.reconcile()
    assert not world.gone
    assert f"{world.find_group().name}-settings" in list_settings(world)


@pytest.mark.parametrize("sees_groups", [True, False])
def test_pausing_keeps_what_a_removed_role_serves_with(world: World, sees_groups: bool) -> None:
    world.change(roles=build_two_roles())
    world.settle()
    world.unserved = set() if sees_groups else {MPIJOB.kind}
    world.change(roles=build_two_roles(name="third"), paused=True)
    world.reconcile()
    assert set(world.services) == {"recall-main", "recall-second", "recall-third"}
    assert {group.role for group in world.groups.values()} == {"main", "second"}
    world.unserved.clear()
    world.change(paused=False)
    assert "delete Service recall-second" in list_words(world)
    world.settle()
    assert set(world.services) == {"recall-main", "recall-third"}


def test_pausing_keeps_nothing_of_a_removed_role_without_groups(world: World) -> None:
    world.change(roles=build_two_roles(replicas=0))
    world.settle()
    world.change(roles=build_two_roles()[:1], paused=True)
    assert list_words(world) == ["delete Service recall-second"]


def test_deletion_of_a_paused_deployment_keeps_nothing(world: World) -> None:
    world.change(roles=build_two_roles())
    world.settle()
    world.change(roles=build_two_roles()[:1], paused=True)
    world.deleting = True
    assert "delete Service recall-second" in list_words(world)
    labels = [item["metadata"]["labels"] for item in world.children[SETTINGS.kind].values()]
    assert any(names.LABEL_GROUP in entry for entry in labels)
    world.settle()
    assert world.gone
