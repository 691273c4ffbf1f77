"""Whatever happens in whatever order, the world comes to rest as the spec says, and on the way no limit is broken."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.world import World

from lockstep_operator.decide.diagnose import is_ready

EVENTS = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 200)),
    st.tuples(st.just("reconcile"), st.integers(0, 6)),
    st.tuples(st.just("lose_worker"), st.integers(0, 3)),
    st.tuples(st.just("end_launcher"), st.integers(0, 3)),
    st.tuples(st.just("end_worker"), st.integers(0, 3)),
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("image"), st.integers(0, 2)),
    st.tuples(st.just("lose_service"), st.integers(0, 0)),
    st.tuples(st.just("delete_group"), st.integers(0, 3)),
)
HISTORIES = st.lists(EVENTS, max_size=25)
POLICY = {"maxRestarts": 2, "windowSeconds": 600, "backoffSeconds": 5}


def happen(world: World, event: tuple[str, int]) -> None:
    kind, number = event
    groups = sorted(world.groups.values(), key=lambda group: group.name)
    group = groups[number % len(groups)] if groups else None
    match kind:
        case "advance":
            world.advance(number)
        case "reconcile":  # dies after so many actions
            world.reconcile(crash_after=number)
        case "scale":
            world.change(replicas=number)
        case "image":
            world.change(image=f"image-{number}")
        case "lose_service":
            world.services.clear()
        case "lose_worker" if group is not None:
            world.lose_worker(group)
        case "end_launcher" if group is not None:
            world.end_pod(group)
        case "end_worker" if group is not None:
            world.end_pod(group, index=1)
        case "delete_group" if group is not None:
            world.update(group.uid, deleting_since=group.deleting_since or world.now)


def check_limits(world: World) -> None:
    living = [(group.role, group.index) for group in world.groups.values() if group.deleting_since is None]
    assert len(living) == len(set(living)), "two living groups hold one place"


@settings(max_examples=300, deadline=None)
@given(HISTORIES)
def test_any_history_with_crashes_comes_to_rest_as_the_spec_says(history: list[tuple[str, int]]) -> None:
    world = World(restartPolicy=POLICY)
    for event in history:
        happen(world, event)
        check_limits(world)
    world.settle()
    assert world.plan().actions == ()
    assert world.plan().again_s is None
    wanted = world.spec.replicas
    assert len(world.groups) == wanted
    assert world.status.ready_replicas == world.status.updated_replicas == wanted
    assert all(is_ready(group) for group in world.groups.values())
    assert world.status.observed_generation == world.generation
    assert len(world.services) == 1
    ready = world.status.find_condition("Ready")
    assert ready is not None
    assert ready.status == ("True" if wanted else "False")
    degraded = world.status.find_condition("Degraded")
    assert degraded is not None
    assert degraded.status == "False"


@settings(max_examples=150, deadline=None)
@given(HISTORIES)
def test_any_history_can_be_deleted_and_leaves_nothing(history: list[tuple[str, int]]) -> None:
    world = World(restartPolicy=POLICY)
    world.reconcile()
    for event in history:
        happen(world, event)
    world.deleting = True
    world.settle()
    assert world.gone
    assert not world.groups
    assert not world.services


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.integers(1, 3))
def test_status_never_counts_more_than_there_is(history: list[tuple[str, int]], replicas: int) -> None:
    world = World(restartPolicy=POLICY, replicas=replicas)
    for event in history:
        happen(world, event)
        world.reconcile()
        status = world.status
        assert 0 <= status.ready_replicas <= status.replicas
        assert 0 <= status.updated_replicas <= status.replicas
        assert len({group.name for group in status.groups}) == len(status.groups)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=40))
def test_a_rollout_never_takes_more_ready_groups_than_it_may(
    replicas: int, unavailable: int, steps: list[tuple[bool, int]]
) -> None:
    world = World(replicas=replicas, rollout={"maxUnavailable": unavailable})
    world.settle()
    for changes_again, seconds in [(True, 1), *steps]:
        if changes_again:
            world.change(image=f"image-{world.generation}")
        world.reconcile()
        world.advance(seconds)
        ready = sum(is_ready(group) for group in world.groups.values())
        assert ready >= replicas - unavailable
