"""What the operator tells beside the status: metrics, Events, health."""

import urllib.error
import urllib.request
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from support.world import World

from lockstep_operator.decide.events import build_event, list_notes
from lockstep_operator.endpoint import start_endpoint
from lockstep_operator.metrics import Metrics
from lockstep_operator.resource.record import Status


def test_series_of_a_deployment_go_when_it_goes() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    world = World()
    world.settle()
    empty = generate_latest(registry)
    metrics.show("default", "recall", world.status)
    metrics.count_restart("default", "recall", "Hang")
    text = generate_latest(registry).decode()
    assert 'lockstep_operator_groups{deployment="recall",namespace="default",state="Ready"} 1.0' in text
    assert 'lockstep_operator_group_restarts_total{deployment="recall",namespace="default",reason="Hang"} 1.0' in text
    assert "lockstep_operator_deployments 1.0" in text
    metrics.forget("default", "recall")
    assert generate_latest(registry) == empty
    metrics.forget("default", "recall")


def test_each_turn_is_told_once() -> None:
    world = World()
    told: list[str] = []
    for _ in range(30):
        before = world.status
        world.reconcile()
        told += [note.reason for note in list_notes(before, world.status)]
        world.advance(1)
    assert told == ["AllGroupsReady"]
    world.end_pod(world.find_group(), exit_code=86)
    before = world.status
    world.reconcile()
    notes = list_notes(before, world.status)
    assert [note.reason for note in notes] == ["Hang", "GroupBroken"]
    assert {note.type for note in notes} == {"Warning"}
    assert list_notes(world.status, world.status) == []


def test_a_failure_is_told_again_only_for_another_group() -> None:
    world = World()
    world.settle()
    world.end_pod(world.find_group())
    world.reconcile()
    changed = replace(world.status, groups=tuple(replace(group, message="x") for group in world.status.groups))
    assert list_notes(world.status, changed) == []
    assert [note.reason for note in list_notes(Status(), changed)][0] == "Failed"


def test_two_notes_of_one_moment_have_different_names() -> None:
    world = World()
    world.settle()
    world.end_pod(world.find_group())
    before = world.status
    world.reconcile()
    events = [build_event(world.observe(), note, world.now) for note in list_notes(before, world.status)]
    assert len({event["metadata"]["name"] for event in events}) == len(events) > 1


def test_health_follows_the_event_loop_and_metrics_are_served() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    alive = [True]
    server = start_endpoint("127.0.0.1", 0, registry, lambda: alive[0])

    def get(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    assert [get("/metrics"), get("/healthz"), get("/other")] == [200, 200, 404]
    alive[0] = False
    assert get("/healthz") == 503
    server.shutdown()
