from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from lockstep_worker import contract
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.health.rank_server import RankServer
from lockstep_worker.health.readiness import Readiness, State
from lockstep_worker.phase import Phase, Standing


def stand() -> Standing:
    return Standing(812, Phase.FORWARD)


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def detector() -> HangDetector:
    return HangDetector(0, on_hang=lambda _: None)


@pytest.fixture
def client(readiness: Readiness, detector: HangDetector) -> Iterator[httpx.Client]:
    registry = CollectorRegistry()
    Counter("lockstep_cakes", "Cakes eaten.", registry=registry).inc(3)
    server = RankServer(registry, readiness, detector, stand, rank=3, host="127.0.0.1", port=0)
    server.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        yield client
    server.stop()


def test_it_serves_the_registry_it_was_given(client: httpx.Client) -> None:
    answer = client.get(contract.METRICS_PATH)
    assert answer.status_code == 200
    assert "lockstep_cakes_total 3.0" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_it_is_unhealthy_until_ready_and_after_a_failure(client: httpx.Client, readiness: Readiness) -> None:
    seen = []
    for state in (State.LOADING, State.READY, State.DRAINING, State.FAILED):
        readiness.move(state)
        answer = client.get(contract.RANK_HEALTH_PATH)
        seen.append((answer.json()["state"], answer.status_code))
    assert seen == [("loading", 503), ("ready", 200), ("draining", 200), ("failed", 503)]


def test_it_says_how_long_ago_the_last_progress_was(client: httpx.Client, detector: HangDetector) -> None:
    assert client.get(contract.RANK_HEALTH_PATH).json()["secondsSinceProgress"] is None
    detector.checkpoint()
    with detector.pause("idle"):
        health = client.get(contract.RANK_HEALTH_PATH).json()
    assert 0 <= health["secondsSinceProgress"] < 60
    assert health["paused"] == "idle"


def test_it_says_where_the_loop_of_which_rank_stands(client: httpx.Client) -> None:
    health = client.get(contract.RANK_HEALTH_PATH).json()
    assert (health["rank"], health["step"], health["phase"]) == (3, 812, "forward")


def test_another_path_is_not_found(client: httpx.Client) -> None:
    assert client.get("/secret").status_code == 404


def test_a_taken_port_is_an_error(client: httpx.Client, readiness: Readiness, detector: HangDetector) -> None:
    with pytest.raises(OSError):
        port = client.base_url.port or 0
        RankServer(CollectorRegistry(), readiness, detector, stand, rank=4, host="127.0.0.1", port=port)


@pytest.mark.parametrize("to", [State.READY, State.DRAINING, State.STARTING])
def test_a_move_that_makes_no_sense_is_refused_and_changes_nothing(readiness: Readiness, to: State) -> None:
    with pytest.raises(ValueError, match=f"starting cannot become {to.value}"):
        readiness.move(to)
    assert readiness.state is State.STARTING


def test_a_failed_rank_stays_failed(readiness: Readiness) -> None:
    readiness.move(State.FAILED)
    with pytest.raises(ValueError, match="cannot become ready"):
        readiness.move(State.READY)
