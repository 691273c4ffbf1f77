"""Two roles: each is judged by itself, and the deployment's answers join theirs."""

from dataclasses import replace
from typing import Any

from lockstep_operator.api.status import MAX_CONDITION, MAX_MESSAGE, Condition, Status
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


def exhaust(world: World, role: str, exit_code: int = 1) -> None:
    """Break a role's only group until no other one may be made."""
    while not any(entry.role == role and entry.state == "Exhausted" for entry in world.status.groups):
        if world.list_living(role):
            world.end_pod(world.find_group(0, role), exit_code=exit_code)
        world.reconcile()
        world.advance(1)


def test_scale_shows_the_role_that_it_sets_and_no_other() -> None:
    world = start({"replicas": 3}, replicas=1)
    said = tell(world)
    assert (said.replicas, said.ready_replicas, said.updated_replicas) == (1, 1, 1)
    role, serving = "serving.lockstep.dev/role=main", "serving.lockstep.dev/serving=true"
    assert said.selector == f"serving.lockstep.dev/deployment=recall,{role},{serving}"
    assert (said.ready_groups, said.nodes) == ("4/4", 8)
    unready(world, "second")
    assert tell(world).ready_replicas == 1
    unready(world, "main")
    assert (tell(world).replicas, tell(world).ready_replicas) == (1, 0)


def test_an_autoscaler_that_follows_what_scale_shows_comes_to_rest() -> None:
    """One that wants two pods of those selected, as a load that two can carry would have it."""
    world = start({"replicas": 3}, replicas=1)
    for _ in range(5):
        world.change(replicas=max(1, world.spec.replicas * 2 // max(1, world.status.replicas)))
        world.settle()
    assert world.spec.replicas == world.status.replicas == 2


def test_a_wrong_spec_is_available_while_any_role_serves() -> None:
    world = start({"replicas": 1}, replicas=0)
    seen = replace(world.observe(), spec=None, problems=("spec.image: is required",))
    assert find(status(seen, (), world.now), "Available")[0] == "True"


def test_a_role_that_is_exhausted_does_not_end_the_progress_of_the_other() -> None:
    world = start(replicas=2, restartPolicy={"backoffSeconds": 0, "maxRestarts": 0})
    exhaust(world, "second")
    said = tell(world)
    assert find(said, "Progressing")[:2] == ("False", "RestartBudgetExceeded")
    roles = build_two_roles()
    world.change(roles=[roles[0] | {"engine": {"maxBatchSize": 4}}, roles[1]])
    said = tell(world)
    assert find(said, "Degraded")[1] == "RestartBudgetExceeded"
    left = "role main: 2 groups of an older revision are left"
    assert find(said, "Progressing") == ("True", "RollingOut", left)
    for _ in range(40):
        world.reconcile()
        world.advance(1)
    assert find(tell(world), "Progressing")[:2] == ("False", "RestartBudgetExceeded")


def test_groups_of_a_removed_role_that_drain_are_progress() -> None:
    world = start(restartPolicy={"backoffSeconds": 0, "maxRestarts": 0}, drainTimeoutSeconds=600)
    exhaust(world, "main")
    world.change(roles=build_two_roles()[:1])
    assert find(tell(world), "Progressing")[:2] == ("True", "GroupsStarting")


def test_of_each_role_in_trouble_one_group_is_named() -> None:
    world = start({"replicas": 2}, restartPolicy={"backoffSeconds": 600})
    for index in (0, 1):
        world.end_pod(world.find_group(index, "second"), exit_code=86)
    world.reconcile()
    alone = find(tell(world), "Degraded")
    assert alone[2].startswith(f"group {world.find_group(0, 'second').name} broke: Hang (exit code 86")
    world.end_pod(world.find_group(0, "main"))
    world.reconcile()
    answer, reason, message = find(tell(world), "Degraded")
    assert (answer, reason) == ("True", "GroupBroken")
    main, second = message.split("; role second: ")
    assert main.startswith("role main: group recall-main-")
    assert f"role second: {second}".endswith(alone[2])


def test_an_exhausted_role_is_told_beside_a_broken_one() -> None:
    world = start(restartPolicy={"backoffSeconds": 0, "maxRestarts": 1})
    exhaust(world, "second")
    world.end_pod(world.find_group(0, "main"))
    world.reconcile()
    _, reason, message = find(world.status, "Degraded")
    assert reason == "RestartBudgetExceeded"
    assert "role main: group recall-main-" in message
    assert "it will be replaced; role second: group recall-second-" in message
    assert message.endswith("or as soon as the spec changes")


def test_what_many_roles_have_to_say_stays_within_a_conditions_length() -> None:
    main, second = build_two_roles()
    world = World(roles=[main, *(second | {"name": f"role{number}"} for number in range(7))])
    world.settle()
    for group in list(world.groups.values()):
        (worker,) = group.workers
        evicted = replace(worker, phase="Failed", ready=False, reason="Evicted", message="x" * MAX_MESSAGE)
        world.update(group.uid, pods=(evicted, *(pod for pod in group.pods if pod.is_launcher)))
    world.reconcile()
    message = find(world.status, "Degraded")[2]
    assert len(message) <= MAX_CONDITION
    assert all(f"role role{number}: group" in message for number in range(7))
