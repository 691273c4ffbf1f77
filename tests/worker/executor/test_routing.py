"""Which data replica a request goes to: the decision alone, and the router on one rank. Over MPI: tests/mpi."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from lockstep_worker.bench.counting import CountingComm
from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.executor.exchange import Exchanged, RankState
from lockstep_worker.executor.routing import Load, Newcomer, Router, route
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Pending, Row, SingleComm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams

GREEDY = SamplingParams(max_tokens=4)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Newcomer], list[Load]]:
    count = draw(st.integers(1, 5))
    loads = [Load(draw(st.integers(0, 20)), draw(st.integers(0, 3000))) for _ in range(count)]
    aware = draw(st.booleans())
    handles = draw(st.lists(st.integers(1, 1 << 62), max_size=12, unique=True))
    newcomers = []
    for handle in handles:
        prompt = [draw(st.integers(0, 1))] * draw(st.integers(1, 120))
        matches = [draw(st.integers(0, len(prompt) - 1)) for _ in range(count)] if aware else ()
        newcomers.append(Newcomer(handle, prompt, matches))
    return newcomers, loads


@given(situations(), st.randoms(use_true_random=False))
def test_every_request_is_routed_once_whatever_the_order_and_no_replica_passes_its_cap(
    situation: tuple[list[Newcomer], list[Load]], rng: random.Random
) -> None:
    newcomers, loads = situation
    before = [Load(load.requests, load.tokens) for load in loads]
    table = route(newcomers, loads)
    assert loads == before
    assert table.keys() == {newcomer.handle for newcomer in newcomers}
    assert table == route(rng.sample(newcomers, len(newcomers)), loads)
    total = len(newcomers) + sum(load.requests for load in loads)
    aware = any(newcomer.matches for newcomer in newcomers)
    cap = -(-3 * total // (2 * len(loads))) if aware else -(-total // len(loads))
    for index, load in enumerate(loads):
        got = list(table.values()).count(index)
        assert load.requests + got <= max(cap, load.requests)


def test_without_matches_requests_go_where_the_least_tokens_are() -> None:
    newcomers = [Newcomer(1, [1] * 100), Newcomer(2, [1] * 10), Newcomer(3, [1] * 10), Newcomer(4, [1] * 10)]
    table = route(newcomers, [Load(1, 10), Load(1, 50)])
    assert table == {1: 0, 2: 1, 3: 1, 4: 0}  # the long one first; then the other, up to a fair share of requests


def test_a_request_goes_to_the_replica_that_holds_its_prompt_though_that_has_more_to_do() -> None:
    held = Newcomer(7, [1] * 100, (0, 96))
    assert route([held], [Load(1, 100), Load(2, 200)]) == {7: 1}
    assert route([Newcomer(7, [1] * 100, (0, 0))], [Load(1, 100), Load(2, 200)]) == {7: 0}


def test_a_match_of_a_tenth_of_the_prompt_does_not_count() -> None:
    loads = [Load(0, 0), Load(1, 10)]
    assert route([Newcomer(7, [1] * 160, (0, 16))], loads) == {7: 0}
    assert route([Newcomer(7, [1] * 40, (0, 32))], loads) == {7: 1}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_hot_prefix_spreads_when_its_holder_has_half_as_much_again_as_its_share(count: int) -> None:
    matches = [96] + [0] * (count - 1)
    newcomers = [Newcomer(handle, [1] * 100, matches) for handle in range(1, 4 * count + 1)]
    table = route(newcomers, [Load(0, 0) for _ in range(count)])
    shares = sorted((list(table.values()).count(index) for index in range(count)), reverse=True)
    assert list(table.values()).count(0) == shares[0] == 6
    assert shares[1] <= 4  # their fair share: what the others hold of it came with this list


def test_equal_newcomers_of_one_list_stay_together_up_to_the_cap() -> None:
    first, second = ([2] * 70 + [1] * 30), ([3] * 70 + [1] * 30)
    newcomers = [Newcomer(1, first, (0, 0)), Newcomer(2, second, (0, 0))]
    newcomers += [Newcomer(3, first, (0, 0)), Newcomer(4, second, (0, 0))]
    table = route(newcomers, [Load(0, 0), Load(0, 0)])
    assert table[1] == table[3] != table[2] == table[4]


def test_ties_are_broken_by_handle() -> None:
    assert [route([Newcomer(handle, [1])], [Load(0, 0)] * 3)[handle] for handle in (1, 2, 3, 4)] == [1, 2, 0, 1]


def test_the_sequences_of_one_request_are_handles_of_their_own_and_spread() -> None:
    table = route([Newcomer(handle, [5] * 20) for handle in (10, 11, 12, 13)], [Load(0, 0), Load(0, 0)])
    assert sorted(table.values()) == [0, 0, 1, 1]


class Doubled(SingleComm):
    """Rank 0 of 2, whose peer finds nothing in its cache."""

    size = 2

    def start_allgather(self, row: Row) -> Pending:
        return super().start_allgather(np.stack((row, np.zeros_like(row))).ravel())


def build(*, cache_aware: bool = True, index: int = 0) -> tuple[Router, CountingComm, BlockPool]:
    comm, pool = CountingComm(Doubled()), BlockPool(64, 4)
    topology = Topology.of(index, data=2)
    return Router(comm, topology, pool, RankMetrics(CollectorRegistry(), 0), cache_aware=cache_aware), comm, pool


def exchange(items: list[Inbound], active: tuple[int, int] = (0, 0)) -> Exchanged:
    states = [RankState(step=0, active=held, running=0, tokens=0, free_blocks=0, digest=0, routes=0) for held in active]
    return Exchanged(np.array(states), items)


def test_there_is_no_gather_without_new_requests_and_none_at_all_when_least_loaded() -> None:
    router, comm, _ = build()
    items: list[Inbound] = [Cancel(3), Shutdown()]
    assert router.mine(exchange(items)) == items
    assert comm.operations == []
    router.mine(exchange([NewRequest(1, [1], GREEDY), NewRequest(2, [2], GREEDY)]))
    assert comm.operations == [("allgather", 16)]
    router, comm, _ = build(cache_aware=False)
    router.mine(exchange([NewRequest(1, [1], GREEDY)]))
    assert comm.operations == []


def test_a_router_keeps_its_own_requests_and_all_else_and_its_checksum_says_what_it_decided() -> None:
    items: list[Inbound] = [NewRequest(1, [1], GREEDY), Cancel(9), NewRequest(2, [1], GREEDY), Shutdown()]
    first, second = (build(cache_aware=False, index=index)[0] for index in range(2))
    assert first.mine(exchange(items)) == [items[1], items[2], items[3]]
    assert second.mine(exchange(items)) == [items[0], items[1], items[3]]
    assert first.digest == second.digest != 0
    first.mine(exchange([NewRequest(3, [1], GREEDY)], active=(0, 5)))
    second.mine(exchange([NewRequest(3, [1], GREEDY)], active=(5, 0)))
    assert first.digest != second.digest


def test_a_prompt_in_the_own_cache_is_kept() -> None:
    router, _, pool = build()
    prompt = list(range(30))
    pool.commit(blocks := pool.allocate(8), prompt, 30)
    pool.release(blocks)
    request = NewRequest(1, prompt, GREEDY)  # by its handle it would go to the other
    assert router.mine(exchange([request], active=(1, 1))) == [request]
