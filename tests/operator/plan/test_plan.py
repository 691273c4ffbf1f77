from dataclasses import replace
from datetime import timedelta

import pytest

from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.groups.state import Drain, Leftover
from lockstep_operator.plan.actions import (
    Action,
    AddFinalizer,
    CreateChild,
    DeleteChild,
    EndTraffic,
    RemoveFinalizer,
    StartDrain,
    UpdateChild,
)
from lockstep_operator.plan.plan import plan
from lockstep_worker.contract import EXIT_CONFIG
from support.worlds.world import World

Name = type[Action] | tuple[type[Action], str]
CREATE_SERVICE, UPDATE_SERVICE, DELETE_SERVICE = [(kind, "Service") for kind in (CreateChild, UpdateChild, DeleteChild)]
CREATE_GROUP, DELETE_GROUP = [(kind, "MPIJob") for kind in (CreateChild, DeleteChild)]


def start(**spec: object) -> World:
    world = World(**spec)
    world.settle()
    return world


def name_action(action: Action) -> Name:
    """Its type, and of which kind the child is."""
    if isinstance(action, (CreateChild, UpdateChild, DeleteChild)):
        return type(action), action.child.kind.name
    return type(action)


def list_actions(world: World) -> list[Name]:
    return [name_action(action) for action in world.plan().actions]


def test_the_finalizer_comes_before_every_child() -> None:
    world = World()
    assert list_actions(world) == [AddFinalizer]
    world.reconcile()
    assert list_actions(world) == [CREATE_SERVICE, CREATE_GROUP]


def test_planning_after_applying_yields_nothing() -> None:
    world = start(replicas=3)
    assert world.plan().actions == ()
    assert world.plan().again_s is None


def test_without_the_mpijob_api_only_the_service_is_made_and_it_is_asked_again() -> None:
    world = World()
    world.unserved = {MPIJOB.kind}
    world.reconcile()
    assert list_actions(world) == [CREATE_SERVICE]
    assert world.plan().again_s == 15


def test_a_broken_group_is_deleted_only_when_its_failure_stands_in_the_status() -> None:
    world = start()
    world.end_pod(world.find_group())
    assert list_actions(world) == []
    world.reconcile()
    (action,) = world.plan().actions
    assert name_action(action) == DELETE_GROUP
    assert isinstance(action, DeleteChild)
    assert action.is_repair


def test_the_place_of_a_broken_group_waits_for_its_end_and_for_the_backoff() -> None:
    world = start(restartPolicy={"backoffSeconds": 100})
    world.end_pod(world.find_group())
    world.reconcile()
    failed_at = world.now
    world.reconcile()
    assert list_actions(world) == []
    world.advance(50)
    assert not world.groups
    assert list_actions(world) == []
    assert world.plan().again_s == pytest.approx(50)
    world.now = failed_at + timedelta(seconds=101)
    assert list_actions(world) == [CREATE_GROUP]


def test_the_backoff_doubles() -> None:
    world = start(restartPolicy={"backoffSeconds": 10, "maxRestarts": 9})
    waits = []
    for _ in range(4):
        world.end_pod(world.find_group())
        world.reconcile()
        failed_at = world.now
        world.reconcile()
        world.advance(1)
        waits.append(round((world.plan().again_s or 0) + (world.now - failed_at).total_seconds()))
        world.now = failed_at + timedelta(seconds=waits[-1] + 1)
        for _ in range(8):
            world.reconcile()
            world.advance(1)
    assert waits == [10, 20, 40, 80]


@pytest.mark.parametrize(("exit_code", "failures"), [(1, 3), (EXIT_CONFIG, 1)], ids=["crash", "wrong configuration"])
def test_a_used_up_budget_holds_the_place_until_the_window_has_passed(exit_code: int, failures: int) -> None:
    world = start(restartPolicy={"backoffSeconds": 0, "maxRestarts": 2, "windowSeconds": 3600})
    first_failure = world.now
    for _ in range(failures):
        world.end_pod(world.find_group(), exit_code=exit_code)
        for _ in range(10):
            world.reconcile()
            world.advance(1)
    assert world.status.groups[0].state == "Exhausted"
    assert list_actions(world) == []
    world.now = first_failure + timedelta(seconds=3660)
    assert list_actions(world) == [CREATE_GROUP]


def test_a_changed_spec_gives_a_used_up_place_another_try_at_once() -> None:
    world = start(restartPolicy={"backoffSeconds": 0, "maxRestarts": 0})
    world.end_pod(world.find_group())
    for _ in range(5):
        world.reconcile()
        world.advance(1)
    assert list_actions(world) == []
    world.change(image="other")
    assert list_actions(world) == [CREATE_GROUP]


def test_a_place_whose_group_cannot_end_is_filled_under_another_name() -> None:
    world = start(restartPolicy={"backoffSeconds": 0})
    world.end_pod(world.find_group())
    world.reconcile()
    world.reconcile()
    (stuck,) = world.groups.values()
    world.now += timedelta(seconds=10)
    assert list_actions(world) == []
    world.now += timedelta(seconds=1000)
    (action,) = world.plan().actions
    assert name_action(action) == CREATE_GROUP
    assert isinstance(action, CreateChild)
    assert action.manifest["metadata"]["name"] == f"{stuck.name}-1"
    assert action.manifest["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"][
        "serving.lockstep.dev/group"
    ] == (f"{stuck.name}-1")


def test_pods_that_outlive_their_mpijob_hold_their_place() -> None:
    world = World()
    world.reconcile()
    seen = replace(world.observe(), leftovers=(Leftover(name="x", group="g", role="main", index=0),))
    assert [name_action(action) for action in plan(seen, world.now).actions] == [CREATE_SERVICE]


def test_scaling_down_takes_groups_that_are_not_ready_first() -> None:
    world = start(replicas=3)
    world.lose_worker(world.find_group(0))
    world.reconcile()
    world.change(replicas=2)
    (action,) = world.plan().actions
    assert name_action(action) == DELETE_GROUP
    assert isinstance(action, DeleteChild)
    assert action.uid == world.find_group(0).uid
    world.settle()
    assert sorted(group.index for group in world.groups.values()) == [1, 2]


def test_a_drain_ends_traffic_then_asks_then_waits_then_deletes() -> None:
    world = start(drainTimeoutSeconds=600)
    world.change(replicas=0)
    assert list_actions(world) == [EndTraffic]
    world.reconcile()
    assert list_actions(world) == [StartDrain]
    world.reconcile()
    group = world.find_group()
    world.update(group.uid, drain=Drain(draining=True, in_flight=3))
    assert list_actions(world) == []
    assert world.plan().again_s == 1
    world.update(group.uid, drain=Drain(draining=True, in_flight=0))
    assert list_actions(world) == [DELETE_GROUP]


@pytest.mark.parametrize("drain", [None, Drain(draining=True, in_flight=3)], ids=["silent", "busy"])
def test_a_drain_ends_at_its_time_limit(drain: Drain | None) -> None:
    world = start(drainTimeoutSeconds=600)
    world.change(replicas=0)
    world.reconcile()
    world.update(world.find_group().uid, drain=drain)
    world.now += timedelta(seconds=599)
    assert DELETE_GROUP not in list_actions(world)
    world.now += timedelta(seconds=1)
    assert list_actions(world) == [DELETE_GROUP]


def test_a_group_that_drains_is_replaced_even_when_the_scale_goes_up_again() -> None:
    world = start(replicas=2, drainTimeoutSeconds=600)
    world.change(replicas=1)
    world.reconcile()
    world.change(replicas=2)
    world.settle()
    assert world.status.ready_replicas == 2
    assert not any(group.is_draining for group in world.groups.values())


def test_a_change_retires_as_many_ready_groups_as_it_may() -> None:
    world = start(replicas=4, rollout={"maxUnavailable": 2})
    world.change(image="other")
    assert list_actions(world) == [EndTraffic, EndTraffic]
    world.reconcile()
    assert EndTraffic not in list_actions(world)


def test_old_groups_that_serve_nobody_never_hold_a_rollout_up() -> None:
    world = start(replicas=3)
    for index in range(3):
        world.lose_worker(world.find_group(index))
    world.change(image="other")
    assert list_actions(world) == [DELETE_GROUP] * 3


def test_a_bad_revision_takes_no_more_than_it_may() -> None:
    world = start(replicas=3, rollout={"maxUnavailable": 1}, restartPolicy={"backoffSeconds": 0, "maxRestarts": 1})
    world.change(image="bad")
    for _ in range(100):
        world.reconcile()
        world.advance(10)
        for group in list(world.groups.values()):
            if group.revision != world.status.groups[-1].revision or group.launcher is None:
                continue
        for group in list(world.groups.values()):
            if group.name.startswith(f"recall-main-{world.status.revision}") and group.launcher is not None:
                world.end_pod(group)
        assert world.status.ready_replicas >= 2


def test_pausing_freezes_groups_but_not_the_service() -> None:
    world = start()
    world.change(paused=True, image="other", replicas=3)
    assert list_actions(world) == []
    world.services.clear()
    assert list_actions(world) == [CREATE_SERVICE]


def test_a_service_that_somebody_changed_is_put_right() -> None:
    world = start()
    (service,) = world.services.values()
    service["spec"]["clusterIP"] = "10.0.0.1"
    assert list_actions(world) == []
    service["spec"] = service["spec"] | {"selector": {"app": "x"}}
    assert list_actions(world) == [UPDATE_SERVICE]


def test_deletion_ends_traffic_first_and_lets_go_last() -> None:
    world = start(replicas=2)
    world.deleting = True
    assert list_actions(world) == [DELETE_SERVICE, EndTraffic, EndTraffic]
    done: list[Name] = []
    for _ in range(30):
        done += list_actions(world)
        world.reconcile()
        if world.gone:
            break
        world.advance(1)
    assert done[-1] is RemoveFinalizer
    assert not world.groups
    assert not world.services


def test_deletion_works_when_the_mpijob_api_is_gone() -> None:
    world = start()
    world.deleting = True
    world.unserved = {MPIJOB.kind}
    world.groups.clear()
    world.services.clear()
    assert list_actions(world) == [RemoveFinalizer]


def test_a_deployment_held_by_somebody_elses_finalizer_is_left_alone() -> None:
    world = start()
    world.deleting = True
    world.finalizers = ("other",)
    assert list_actions(world) == []


def test_scaling_down_never_keeps_a_group_that_drains_instead_of_a_ready_one() -> None:
    world = start(replicas=2, drainTimeoutSeconds=600)
    image = world.spec.image
    world.change(image="other")
    world.reconcile()
    assert world.find_group(0).is_draining
    world.change(image=image, replicas=1)
    assert EndTraffic not in list_actions(world)
    world.settle()
    assert [group.index for group in world.groups.values()] == [1]
