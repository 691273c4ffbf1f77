"""Two roles: each is judged by itself, and the deployment's answers join theirs."""

from dataclasses import replace
from typing import Any

from lockstep_operator.api.status import Condition, Status
from lockstep_operator.status.status import status
from support.cluster.deployments import build_two_roles
from support.worlds.world import World


def start(second: dict[str, Any] | None = None, **spec: Any) -> World:
    world = World(roles=build_two_roles(**(second or {})), **spec)
    world.settle()
    return world


def tell(world: World) -> Status:
    return status(world.observe(), (), world.now)


def find(said: Status, kind: str) -> tuple[str, str, str]:
    condition = said.find_condition(kind)
    assert isinstance(condition, Condition)
    return condition.status, condition.reason, condition.message


def unready(world: World, role: str, index: int = 0) -> None:
    group = world.find_group(index, role)
    world.update(group.uid, pods=tuple(replace(pod, ready=False) for pod in group.pods))


def test_two_roles_of_different_revisions_both_become_ready() -> None:
    said = tell(start({"replicas": 2}, replicas=1))
    main, second = said.roles
    assert main.revision != second.revision
    assert (main.ready_replicas, main.updated_replicas) == (1, 1)
    assert (second.ready_replicas, second.updated_replicas) == (2, 2)
    assert (said.phase, said.ready_groups, said.nodes) == ("Ready", "3/3", 6)
    ready = "role main: 1 of 1 groups are ready; role second: 2 of 2 groups are ready"
    assert find(said, "Ready") == ("True", "AllGroupsReady", ready)
    available = "role main: 1 groups are ready, 1 are needed; role second: 2 groups are ready, 1 are needed"
    assert find(said, "Available") == ("True", "EnoughGroupsReady", available)
    assert find(said, "Progressing")[:2] == ("False", "Complete")


def test_what_there_is_once_is_the_first_roles() -> None:
    said = tell(start())
    assert said.revision == said.roles[0].revision
    assert said.url == said.roles[0].url == "http://recall-main.default.svc:8000"
    assert said.roles[1].url == "http://recall-second.default.svc:8000"


def test_a_role_that_is_not_ready_is_named_and_the_other_is_not() -> None:
    world = start()
    unready(world, "second")
    said = tell(world)
    answer, reason, message = find(said, "Ready")
    assert (answer, reason) == ("False", "GroupsNotReady")
    assert message.startswith("role second: 0 of 1 groups of the current revision are ready; recall-second-")
    assert "main" not in message
    assert find(said, "Progressing") == ("True", "GroupsStarting", "role second: 0 of 1 groups are ready")


def test_many_groups_of_one_role_do_not_make_up_for_the_other() -> None:
    world = start({"replicas": 5}, replicas=1)
    unready(world, "main")
    said = tell(world)
    assert said.ready_groups == "5/6"
    assert find(said, "Ready")[0] == "False"
    needed = "role main: 0 groups are ready, 1 are needed"
    assert find(said, "Available") == ("False", "TooFewGroupsReady", needed)


def test_each_role_may_miss_as_many_groups_as_a_rollout_may_take() -> None:
    world = start({"replicas": 2}, replicas=2)
    unready(world, "main")
    unready(world, "second")
    assert find(tell(world), "Available")[0] == "True"
    unready(world, "second", 1)
    said = tell(world)
    assert find(said, "Available")[2] == "role second: 0 groups are ready, 1 are needed"


def test_a_rollout_names_the_roles_that_it_reaches() -> None:
    world = start({"replicas": 2})
    world.change(roles=build_two_roles(replicas=2, engine={"maxBatchSize": 16}))
    said = tell(world)
    left = "role second: 2 groups of an older revision are left"
    assert find(said, "Progressing") == ("True", "RollingOut", left)
    assert find(said, "Ready")[2].startswith("role second: 0 of 2 groups of the current revision are ready")


def test_a_role_without_groups_is_no_hindrance() -> None:
    said = tell(start({"replicas": 0}))
    assert find(said, "Ready") == ("True", "AllGroupsReady", "role main: 1 of 1 groups are ready")
    assert find(said, "Available")[2] == "role main: 1 groups are ready, 1 are needed"
    assert find(said, "Progressing")[1] == "Complete"


def test_a_deployment_of_which_only_the_scaled_role_is_empty_still_serves() -> None:
    said = tell(start({"replicas": 1}, replicas=0))
    assert (said.phase, said.ready_groups) == ("Ready", "1/1")
    assert find(said, "Ready")[2] == "role second: 1 of 1 groups are ready"


def test_only_a_deployment_without_any_group_is_scaled_to_zero() -> None:
    said = tell(start({"replicas": 0}, replicas=0))
    assert said.phase == "ScaledToZero"
    assert find(said, "Ready")[1] == find(said, "Available")[1] == "ScaledToZero"


def test_a_broken_group_of_the_second_role_is_told_with_its_failure() -> None:
    world = start()
    world.end_pod(world.find_group(0, "second"), exit_code=86)
    world.reconcile()
    said = world.status
    assert find(said, "Degraded")[1] == "GroupBroken"
    assert (said.roles[0].last_failure, said.roles[0].restarts) == (None, 0)
    assert said.roles[1].last_failure is not None
    assert said.roles[1].restarts == 1
