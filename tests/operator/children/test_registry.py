"""A kind of child of the test's own: one module and one entry of the registry, and no line of the operator changed."""

from typing import Any

import pytest

from lockstep_operator.apply import describe
from lockstep_operator.children.registry import CHILDREN
from support.cluster.more_children import SETTINGS
from support.worlds.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(World, "kinds", (*CHILDREN, SETTINGS))
    world = World()
    world.settle()
    return world


def find(world: World) -> dict[str, Any]:
    return world.children[SETTINGS.kind]["recall-settings"]


def list_words(world: World) -> list[str]:
    return [describe(action) for action in world.plan().actions]


def test_it_is_made_once(world: World) -> None:
    assert find(world)["data"] == {"model": "recall"}
    made = [describe(action) for action in world.writes if getattr(action, "child", None) is SETTINGS]
    assert made == ["create ConfigMap recall-settings", f"create ConfigMap {world.find_group().name}-settings"]


def test_what_somebody_changed_is_put_right_and_what_somebody_added_stays(world: World) -> None:
    find(world)["metadata"]["annotations"] = {"theirs": "1"}
    find(world)["data"]["more"] = "1"
    assert list_words(world) == []
    find(world)["data"]["model"] = "other"
    assert list_words(world) == ["update ConfigMap recall-settings"]
    world.reconcile()
    assert find(world)["data"] == {"model": "recall"}


def test_it_follows_the_spec_and_goes_when_the_spec_asks_for_it_no_more(world: World) -> None:
    world.change(model={"source": "/m", "servedName": "next"})
    assert "update ConfigMap recall-settings" in list_words(world)
    world.settle()
    assert find(world)["data"] == {"model": "next"}
    world.change(replicas=0)
    assert "delete ConfigMap recall-settings" in list_words(world)
    world.settle()
    assert not world.children[SETTINGS.kind]


def test_it_is_made_again_when_somebody_deletes_it(world: World) -> None:
    del world.children[SETTINGS.kind]["recall-settings"]
    assert list_words(world) == ["create ConfigMap recall-settings"]


def test_the_deployment_goes_only_after_it(world: World) -> None:
    world.deleting = True
    assert list_words(world)[:2] == ["delete Service recall-main", "delete ConfigMap recall-settings"]
    world.settle()
    assert world.gone
    assert not world.children[SETTINGS.kind]


@pytest.mark.parametrize("ends", ["scaled down", "deleted"])
def test_that_of_a_group_stays_until_the_group_has_gone(world: World, ends: str) -> None:
    own = f"{world.find_group().name}-settings"
    if ends == "deleted":
        world.deleting = True
    else:
        world.change(replicas=0)
    for _ in range(20):
        world.reconcile()
        assert own in world.children[SETTINGS.kind] or not world.groups
        world.advance(1)
    assert not world.children[SETTINGS.kind]


def test_that_of_a_group_that_is_replaced_goes_with_it(world: World) -> None:
    before = set(world.children[SETTINGS.kind])
    world.change(image="other")
    world.settle()
    assert set(world.children[SETTINGS.kind]) == {"recall-settings", f"{world.find_group().name}-settings"} != before
