"""Whatever happens in whatever order, the world comes to rest as the spec says, and on the way no limit is broken."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_operator import names
from lockstep_operator.api.status import RoleStatus, Status
from lockstep_operator.children.mpijob import MPIJOB
from lockstep_operator.children.registry import CHILDREN
from lockstep_operator.groups.health import is_ready
from support.cluster.deployments import MINIMAL, build_two_roles
from support.cluster.more_children import SETTINGS
from support.worlds.world import World

MAIN, SECOND = build_two_roles()
ROLES = (
    MINIMAL["spec"]["roles"],
    [MAIN, SECOND],
    [MAIN, SECOND | {"replicas": 0}],
    [MAIN, SECOND | {"replicas": 2, "engine": {"maxBatchSize": 16}}],
    [MAIN, SECOND | {"name": "third"}],
    [MAIN | {"replicas": 1}, {key: value for key, value in SECOND.items() if key != "replicas"}],
)
"""One role, and two of different revisions: from one of these to another, a role comes, goes, changes or is renamed."""
UNSERVED = ((), (MPIJOB.kind,), (SETTINGS.kind,))
EVENTS = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 200)),
    st.tuples(st.just("reconcile"), st.integers(0, 6)),
    st.tuples(st.just("run"), st.integers(1, 12)),
    st.tuples(st.just("lose_worker"), st.integers(0, 3)),
    st.tuples(st.just("end_launcher"), st.integers(0, 3)),
    st.tuples(st.just("end_worker"), st.integers(0, 3)),
    st.tuples(st.just("scale"), st.integers(0, 3)),
    st.tuples(st.just("image"), st.integers(0, 2)),
    st.tuples(st.just("lose_service"), st.integers(0, 0)),
    st.tuples(st.just("delete_group"), st.integers(0, 3)),
    st.tuples(st.just("roles"), st.integers(0, len(ROLES) - 1)),
    st.tuples(st.just("pause"), st.integers(0, 1)),
    st.tuples(st.just("pause_and_change"), st.integers(0, len(ROLES) - 1)),
    st.tuples(st.just("orphan"), st.integers(0, 3)),
    st.tuples(st.just("serve"), st.integers(0, len(UNSERVED) - 1)),
)
HISTORIES = st.lists(EVENTS, max_size=25)
SPECS = st.sampled_from([{"roles": roles} for roles in ROLES])
POLICY = {"maxRestarts": 2, "windowSeconds": 600, "backoffSeconds": 5}


def build_world(*, runs: bool = False, **spec: Any) -> World:
    """One with a kind of child of each group beside the operator's own; `runs` says that it has come to rest."""
    world = World(restartPolicy=POLICY, **spec)
    world.kinds = (*CHILDREN, SETTINGS)
    if runs:
        world.settle()
    return world


def happen(world: World, event: tuple[str, int]) -> None:
    kind, number = event
    groups = sorted(world.groups.values(), key=lambda group: group.name)
    group = groups[number % len(groups)] if groups else None
    match kind:
        case "advance":
            world.advance(number)
        case "reconcile":  # dies after so many actions
            world.reconcile(crash_after=number)
        case "run":  # long enough for groups to become ready
            for _ in range(number):
                world.reconcile()
                world.advance(1)
        case "scale":
            world.change(replicas=number)
        case "image":
            world.change(image=f"image-{number}")
        case "roles":
            world.change(roles=ROLES[number])
        case "pause":
            world.change(paused=bool(number))
        case "pause_and_change":
            world.change(paused=True, roles=ROLES[number])
        case "serve":
            world.unserved = set(UNSERVED[number])
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
        case "orphan" if group is not None:
            world.orphan(group)


def happen_within_limits(world: World, event: tuple[str, int]) -> None:
    groups, services, settings = dict(world.groups), set(world.services), list_of_groups(world)
    happen(world, event)
    living = [(group.role, group.index) for group in world.groups.values() if group.deleting_since is None]
    assert len(living) == len(set(living)), "two living groups hold one place"
    stayed = {group.name for uid, group in groups.items() if uid in world.groups} | {pod.group for pod in world.orphans}
    assert not (settings - list_of_groups(world)) & stayed, "a group outlives its child"
    if event[0] == "reconcile" and world.spec.paused:
        assert world.groups == groups, "pausing does not freeze groups"
        serving = {names.build_service_name("recall", group.role) for group in groups.values()}
        assert services & serving <= set(world.services), "a frozen group has lost its Service"


def list_of_groups(world: World) -> set[str]:
    """The groups that have a child of their own."""
    labels = [item["metadata"]["labels"] for item in world.children.get(SETTINGS.kind, {}).values()]
    return {entry[names.LABEL_GROUP] for entry in labels if names.LABEL_GROUP in entry}


@settings(max_examples=300, deadline=None)
@given(HISTORIES, SPECS, st.booleans())
def test_any_history_with_crashes_comes_to_rest_as_the_spec_says(
    history: list[tuple[str, int]], spec: dict[str, Any], runs: bool
) -> None:
    world = build_world(runs=runs, **spec)
    for event in history:
        happen_within_limits(world, event)
    world.unserved.clear()
    world.change(paused=False)
    world.settle()
    assert world.plan().actions == ()
    assert world.plan().again_s is None
    wanted = {role.name: world.spec.count_replicas(role) for role in world.spec.roles}
    assert {name: len(world.list_living(name)) for name in wanted} == wanted
    assert len(world.groups) == sum(wanted.values())
    for role in world.status.roles:
        assert role.ready_replicas == role.updated_replicas == role.replicas == wanted[role.name]
    assert world.status.ready_groups == f"{len(world.groups)}/{len(world.groups)}"
    assert all(is_ready(group) for group in world.groups.values())
    assert world.status.observed_generation == world.generation
    assert len(world.services) == len(world.spec.roles)
    assert list_of_groups(world) == {group.name for group in world.groups.values()}
    ready = world.status.find_condition("Ready")
    assert ready is not None
    assert ready.status == ("True" if world.groups else "False")
    degraded = world.status.find_condition("Degraded")
    assert degraded is not None
    assert degraded.status == "False"


@settings(max_examples=150, deadline=None)
@given(HISTORIES, SPECS, st.booleans())
def test_any_history_can_be_deleted_and_leaves_nothing(
    history: list[tuple[str, int]], spec: dict[str, Any], runs: bool
) -> None:
    world = build_world(runs=runs, **spec)
    world.reconcile()
    for event in history:
        happen_within_limits(world, event)
    world.deleting = True
    if MPIJOB.kind in world.unserved:  # the API took its objects along
        world.groups.clear()
    world.settle()
    assert world.gone
    assert not world.groups
    assert not world.services
    assert world.unserved or not world.children.get(SETTINGS.kind), "what is left unseen is collected with its owner"


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.integers(1, 3), SPECS)
def test_status_never_counts_more_than_there_is(
    history: list[tuple[str, int]], replicas: int, spec: dict[str, Any]
) -> None:
    world = build_world(replicas=replicas, **spec)
    for event in history:
        happen(world, event)
        world.reconcile()
        status = world.status
        parts: list[Status | RoleStatus] = [status, *status.roles]
        for counts in parts:
            assert 0 <= counts.ready_replicas <= counts.replicas
            assert 0 <= counts.updated_replicas <= counts.replicas
        assert status.replicas <= sum(role.replicas for role in status.roles) <= len(status.groups)
        assert len({group.name for group in status.groups}) == len(status.groups)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 5), st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=40), SPECS)
def test_a_rollout_never_takes_more_ready_groups_of_a_role_than_it_may(
    replicas: int, unavailable: int, turns: list[tuple[bool, int]], spec: dict[str, Any]
) -> None:
    world = World(replicas=replicas, rollout={"maxUnavailable": unavailable}, **spec)
    world.settle()
    for changes_again, seconds in [(True, 1), *turns]:
        if changes_again:
            world.change(image=f"image-{world.generation}")
        world.reconcile()
        world.advance(seconds)
        for role in world.spec.roles:
            ready = sum(is_ready(group) for group in world.list_living(role.name))
            assert ready >= world.spec.count_replicas(role) - unavailable
