"""Two roles: each is filled, repaired and rolled out by itself."""

from typing import Any

from lockstep_operator.groups.health import is_ready
from lockstep_operator.plan.actions import DeleteChild, EndTraffic
from support.cluster.deployments import build_two_roles
from support.worlds.world import World


def start(second: dict[str, Any] | None = None, **spec: Any) -> World:
    world = World(roles=build_two_roles(**(second or {})), **spec)
    world.settle()
    return world


def change_second(world: World, **fields: Any) -> None:
    world.change(roles=build_two_roles(**fields))


def list_drained(world: World) -> list[tuple[str, int]]:
    """Which groups the plan takes out of service, by role and index."""
    actions = [action for action in world.plan().actions if isinstance(action, EndTraffic)]
    return [(action.group.role, action.group.index) for action in actions]


def test_each_role_has_its_own_service_and_groups() -> None:
    world = start({"replicas": 2}, replicas=2)
    assert list(world.services) == ["recall-main", "recall-second"]
    selectors = [service["spec"]["selector"]["serving.lockstep.dev/role"] for service in world.services.values()]
    assert selectors == ["main", "second"]
    assert [len(world.list_living(role)) for role in ("main", "second")] == [2, 2]
    assert len({group.revision for group in world.groups.values()}) == 2


def test_a_role_may_have_its_own_number_of_groups() -> None:
    world = start({"replicas": 3}, replicas=1)
    assert [len(world.list_living(role)) for role in ("main", "second")] == [1, 3]
    world.change(replicas=2)
    world.settle()
    assert [len(world.list_living(role)) for role in ("main", "second")] == [2, 3]
    change_second(world, replicas=0)
    world.settle()
    assert [len(world.list_living(role)) for role in ("main", "second")] == [2, 0]


def test_another_number_of_groups_replaces_none() -> None:
    world = start(replicas=2)
    before = set(world.groups)
    change_second(world, replicas=3)
    world.settle()
    assert before < set(world.groups)


def test_a_change_of_one_role_leaves_the_groups_of_the_other() -> None:
    world = start(replicas=2)
    kept = {group.uid for group in world.list_living("main")}
    change_second(world, engine={"maxBatchSize": 16})
    assert list_drained(world) == [("second", 0)]
    world.settle()
    assert {group.uid for group in world.list_living("main")} == kept
    assert all(is_ready(group) for group in world.groups.values())


def test_each_role_has_its_own_rollout_budget() -> None:
    world = start({"replicas": 3}, replicas=3, rollout={"maxUnavailable": 1})
    world.change(image="other")
    assert list_drained(world) == [("main", 0), ("second", 0)]


def test_a_broken_role_does_not_hold_up_the_rollout_of_the_other() -> None:
    world = start({"replicas": 2}, replicas=2, restartPolicy={"backoffSeconds": 600})
    world.end_pod(world.find_group(0, "second"))
    world.end_pod(world.find_group(1, "second"))
    world.reconcile()
    world.change(image="other")
    assert list_drained(world) == [("main", 0)]
    gone = [action.name for action in world.plan().actions if isinstance(action, DeleteChild)]
    assert gone == [world.find_group(index, "second").name for index in (0, 1)]


def test_a_role_that_leaves_the_spec_is_drained_with_its_service() -> None:
    world = start()
    kept = {group.uid for group in world.list_living("main")}
    world.change(roles=build_two_roles()[:1])
    assert list_drained(world) == [("second", 0)]
    world.settle()
    assert set(world.groups) == kept
    assert list(world.services) == ["recall-main"]
