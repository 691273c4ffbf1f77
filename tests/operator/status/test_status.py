import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lockstep_operator.api.decode import encode
from lockstep_operator.api.status import Condition, Status, read_status
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.groups.state import Ending
from lockstep_operator.status.status import status
from lockstep_worker.contract import EXIT_CONFIG, EXIT_HANG
from support.worlds.world import World


def start(**spec: object) -> World:
    world = World(**spec)
    world.settle()
    return world


def tell(world: World, *conflicts: str) -> Status:
    return status(world.observe(), conflicts, world.now)


def find(said: Status, kind: str) -> Condition:
    condition = said.find_condition(kind)
    assert condition is not None
    return condition


def test_a_ready_deployment_says_so_everywhere() -> None:
    world = start(replicas=2)
    said = tell(world)
    assert {condition.type: condition.status for condition in said.conditions} == {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "Degraded": "False",
        "PlatformReady": "True",
    }
    assert (said.phase, said.ready_groups, said.nodes) == ("Ready", "2/2", 4)
    assert said.selector == "serving.lockstep.dev/deployment=recall,serving.lockstep.dev/serving=true"
    assert all(condition.observed_generation == 1 for condition in said.conditions)


def test_time_alone_changes_nothing() -> None:
    world = start()
    before = tell(world)
    world.now += timedelta(days=400)
    assert tell(world) == before


def test_a_condition_keeps_its_time_while_its_answer_stays() -> None:
    world = start()
    turned = find(world.status, "Ready").last_transition_time
    world.change(rollout={"maxUnavailable": 2})
    world.advance()
    ready = find(tell(world), "Ready")
    assert (ready.last_transition_time, ready.observed_generation) == (turned, 2)
    world.lose_worker(world.find_group())
    assert find(tell(world), "Ready").last_transition_time != turned


def test_ready_of_an_old_revision_is_not_ready() -> None:
    world = start()
    world.change(image="other")
    said = tell(world)
    assert find(said, "Ready").status == "False"
    assert find(said, "Available").status == "True"
    assert (find(said, "Progressing").status, find(said, "Progressing").reason) == ("True", "RollingOut")
    assert (said.ready_replicas, said.updated_replicas) == (1, 0)


@pytest.mark.parametrize("index", [0, 1], ids=["launcher", "worker"])
def test_one_pod_that_is_not_ready_makes_the_group_not_ready(index: int) -> None:
    world = start()
    group = world.find_group()
    names = {pod.index: pod.name for pod in group.pods}
    world.update(group.uid, pods=tuple(replace(pod, ready=pod.index != index) for pod in group.pods))
    said = tell(world)
    assert said.groups[0].state == "Starting"
    assert find(said, "Ready").status == "False"
    assert names[index] in find(said, "Ready").message
    assert names[1 - index] not in find(said, "Ready").message


def test_a_pod_of_another_revision_makes_the_group_not_ready() -> None:
    world = start()
    group = world.find_group()
    world.update(group.uid, pods=tuple(replace(pod, revision="other") for pod in group.pods))
    assert find(tell(world), "Ready").status == "False"


def test_a_failure_is_recorded_once_with_its_node_and_rank() -> None:
    world = start()
    group = world.find_group()
    ending = Ending(exit_code=EXIT_HANG, reason="Hang", rank=1, message="rank 1 stands in exchange")
    launcher = replace(group.launcher, phase="Failed", ready=False, ending=ending)  # type: ignore[type-var]
    world.update(group.uid, pods=(*group.workers, launcher))
    world.reconcile()
    (entry,) = world.status.groups
    assert entry.last_failure is not None
    assert (entry.last_failure.reason, entry.last_failure.exit_code) == ("Hang", EXIT_HANG)
    assert (entry.last_failure.rank, entry.last_failure.node) == (1, "node-1")
    assert entry.restarts == 1
    assert "exit code 86, rank 1, node node-1" in find(world.status, "Degraded").message
    assert tell(world).groups[0].restarts == 1
    assert world.status.roles[0].last_failure == entry.last_failure


def test_a_hang_in_which_no_rank_stands_out_blames_no_node() -> None:
    world = start()
    group = world.find_group()
    ending = Ending(exit_code=EXIT_HANG, reason="Hang", rank=None, message="no rank stands out")
    launcher = replace(group.launcher, phase="Failed", ready=False, ending=ending)  # type: ignore[type-var]
    world.update(group.uid, pods=(*group.workers, launcher))
    world.reconcile()
    failure = world.status.groups[0].last_failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.node) == ("Hang", None, None)


def test_a_worker_that_came_back_under_another_uid_is_a_failure() -> None:
    world = start()
    world.lose_worker(world.find_group())
    group = world.find_group()
    world.update(group.uid, pods=(*group.pods, replace(world._build_pod(group, 1), ready=True)))
    world.reconcile()
    failure = world.status.groups[0].last_failure
    assert failure is not None
    assert failure.reason == "WorkerReplaced"


def test_a_replaced_worker_is_noticed_even_when_the_start_was_never_recorded() -> None:
    world = start()
    world.status = Status()
    group = world.find_group()
    later = replace(world._build_pod(group, 1), ready=True, created=world.now + timedelta(seconds=1))
    world.update(group.uid, pods=(later, *(pod for pod in group.pods if pod.is_launcher)))
    world.reconcile()
    failure = world.status.groups[0].last_failure
    assert failure is not None
    assert failure.reason == "WorkerReplaced"


def test_a_worker_may_come_and_go_before_the_group_has_started() -> None:
    world = World()
    world.reconcile()
    world.reconcile()
    world.advance()
    world.advance()
    group = world.find_group()
    assert group.workers
    world.lose_worker(group)
    world.reconcile()
    assert world.status.groups[0].last_failure is None


def test_an_evicted_worker_is_named_evicted() -> None:
    world = start()
    group = world.find_group()
    (worker,) = group.workers
    evicted = replace(worker, phase="Failed", ready=False, reason="Evicted", message="the node was low on memory")
    world.update(group.uid, pods=(evicted, *(pod for pod in group.pods if pod.is_launcher)))
    world.reconcile()
    failure = world.status.groups[0].last_failure
    assert failure is not None
    assert (failure.reason, failure.message) == ("Evicted", "the node was low on memory")


def test_a_job_that_mpi_operator_calls_failed_is_a_failure() -> None:
    world = start()
    group = world.find_group()
    world.update(group.uid, outcome="Failed", outcome_message="evicted", pods=group.workers)
    world.reconcile()
    failure = world.status.groups[0].last_failure
    assert failure is not None
    assert (failure.reason, failure.message) == ("MPIJobFailed", "evicted")


def test_a_wrong_configuration_is_named_and_not_tried_again_at_once() -> None:
    world = start(restartPolicy={"backoffSeconds": 0})
    world.end_pod(world.find_group(), exit_code=EXIT_CONFIG)
    for _ in range(5):
        world.reconcile()
        world.advance(1)
    degraded = find(world.status, "Degraded")
    assert (degraded.status, degraded.reason) == ("True", "InvalidConfiguration")
    assert not world.groups


def test_an_mpijob_that_nobody_accepts_is_reported_in_time() -> None:
    world = World()
    world.reconcile()
    world.reconcile()
    world.now += timedelta(seconds=29)
    assert find(tell(world), "PlatformReady").status == "True"
    assert (world.plan().again_s or 99) <= 3
    world.now += timedelta(seconds=1)
    platform = find(tell(world), "PlatformReady")
    assert (platform.status, platform.reason) == ("False", "MPIJobNotAccepted")
    assert "kubectl describe mpijob recall-main-" in platform.message


def test_a_missing_mpijob_api_is_reported_and_passes() -> None:
    world = World()
    world.unserved = {MPIJOB.kind}
    world.reconcile()
    world.reconcile()
    assert find(world.status, "PlatformReady").reason == "MPIJobCRDMissing"
    assert find(world.status, "Ready").reason == "MPIJobCRDMissing"
    world.unserved.clear()
    world.settle()
    assert find(world.status, "Ready").status == "True"


def test_a_conflict_is_never_ready() -> None:
    world = start()
    said = tell(world, "Service recall-main")
    assert (find(said, "Ready").status, find(said, "Ready").reason) == ("False", "Conflict")
    assert "Service recall-main belongs to somebody else" in find(said, "Degraded").message


def test_no_groups_wanted_is_not_ready_and_not_degraded() -> None:
    world = start(replicas=0)
    assert world.status.phase == "ScaledToZero"
    assert find(world.status, "Ready").reason == "ScaledToZero"
    assert find(world.status, "Degraded").status == "False"
    assert world.status.selector


def test_a_wrong_spec_is_told_and_groups_stay() -> None:
    world = start()
    seen = replace(world.observe(), spec=None, problems=("spec.image: is required",), generation=2)
    said = status(seen, (), world.now)
    assert (find(said, "Degraded").reason, find(said, "Degraded").message) == ("InvalidSpec", "spec.image: is required")
    assert [group.name for group in said.groups] == [group.name for group in seen.groups]


def test_deletion_tells_what_it_waits_for() -> None:
    world = start(drainTimeoutSeconds=600)
    world.deleting = True
    world.reconcile()
    said = tell(world)
    assert said.phase == "Deleting"
    assert "finishes its requests" in find(said, "Ready").message


@pytest.mark.parametrize("raw", [None, {}, {"phase": "Odd"}, {"groups": 3}], ids=json.dumps)
def test_a_status_that_cannot_be_read_counts_as_none(raw: object) -> None:
    assert read_status(raw) == Status()


def test_a_status_is_read_as_it_was_written() -> None:
    world = start(replicas=2)
    world.end_pod(world.find_group(1))
    world.reconcile()
    assert read_status(json.loads(json.dumps(encode(world.status)))) == world.status
