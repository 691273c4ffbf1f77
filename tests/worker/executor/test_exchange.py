"""The exchange alone: what a row says, what is sent, and what is not. The real thing over MPI is in tests/mpi."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from lockstep_worker.bench.counting import CountingComm
from lockstep_worker.errors import RankDiverged
from lockstep_worker.executor.exchange import Exchange, Exchanged, RankState
from lockstep_worker.executor.idle import wait_asleep, wait_awake
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Pending, Row, SingleComm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams

ITEMS: list[Inbound] = [NewRequest(7, [1, 2, 3], SamplingParams(max_tokens=4, end_ids=(2,))), Cancel(6), Shutdown()]


def run_one(comm: CountingComm, items: list[Inbound], active: int = 0) -> Exchanged:
    exchange = Exchange(comm, RankMetrics(CollectorRegistry(), comm.rank), Topology.of(comm.rank, tensor=comm.size))
    exchange.post(RankState(step=3, active=active, running=1, tokens=8, free_blocks=5, digest=9, routes=4), items)
    assert exchange.posted
    exchanged = exchange.complete(wait_awake)
    assert not exchange.posted
    return exchanged


def test_a_single_rank_gets_its_items_as_they_are_and_sends_nothing() -> None:
    comm = CountingComm(SingleComm())
    exchanged = run_one(comm, ITEMS)
    assert exchanged.items is ITEMS
    assert [name for name, _ in comm.operations] == ["allgather"]


def test_a_row_says_where_a_rank_stands() -> None:
    exchanged = run_one(CountingComm(SingleComm()), ITEMS, active=2)
    told = {name: exchanged.of_ranks(name).tolist() for name in RankState._fields}
    assert told.pop("entered_ns")[0] > 1_700_000_000_000_000_000
    assert {name: values[0] for name, values in told.items()} == {
        "step": 3,
        "active": 2,
        "running": 1,
        "tokens": 8,
        "free_blocks": 5,
        "digest": 9,
        "routes": 4,
        "payload_bytes": len(ITEMS),  # of a group of one, which sends none: how many items there are
    }


def test_a_field_of_a_data_replica_is_that_of_its_first_rank() -> None:
    rows = np.arange(4 * len(RankState._fields)).reshape(4, -1)
    topology = Topology.of(0, data=2, tensor=2)
    assert Exchanged(rows, []).of_replicas("step", topology).tolist() == [0, 2 * len(RankState._fields)]


@pytest.mark.parametrize(("items", "active", "idle"), [([], 0, True), ([], 1, False), ([Cancel(1)], 0, False)])
def test_a_group_is_idle_without_items_and_without_active_requests(
    items: list[Inbound], active: int, idle: bool
) -> None:
    assert run_one(CountingComm(SingleComm()), items, active).idle is idle


class Recorded(SingleComm):
    """Plays rank 1 of 2: rank 0's row and payload were written down before."""

    rank, size = 1, 2

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def start_allgather(self, row: Row) -> Pending:
        mine = RankState(*row.tolist())
        first = mine._replace(payload_bytes=len(self.payload), entered_ns=mine.entered_ns - 2_000_000)
        return Rows(np.array(first), row)

    def broadcast(self, data: bytearray) -> None:
        assert len(data) == len(self.payload), "ranks must agree on the length"
        data[:] = self.payload


class Rows:
    def __init__(self, *rows: Row) -> None:
        self._rows, self._asked = rows, 0

    def done(self) -> bool:
        self._asked += 1
        return self._asked > 60  # more than the first, busy looks

    def rows(self) -> Row:

        return np.stack(self._rows)


def test_another_rank_decodes_what_rank_0_announced() -> None:
    comm = CountingComm(Recorded(msgspec.msgpack.encode(ITEMS)))
    exchanged = run_one(comm, [])
    assert exchanged.items == ITEMS
    assert [name for name, _ in comm.operations] == ["allgather", "broadcast"]
    assert exchanged.skew_s == pytest.approx(2e-3)


def state(**different: int) -> RankState:
    return RankState(**{**dict.fromkeys(RankState._fields, 0), **different})


class Peers(SingleComm):
    """Plays rank 0 of a group whose other rows were written down before."""

    def __init__(self, *others: RankState) -> None:
        self.size = 1 + len(others)
        self.others = others

    def start_allgather(self, row: Row) -> Pending:
        return Rows(row, *map(np.array, self.others))


def meet(width: int, *others: RankState) -> None:
    topology = Topology.of(0, data=(1 + len(others)) // width, tensor=width)
    exchange = Exchange(Peers(*others), RankMetrics(CollectorRegistry(), 0), topology)
    exchange.post(state(), [])
    exchange.complete(wait_awake)


def test_ranks_of_one_replica_must_have_the_same_tokens_and_those_of_another_need_not() -> None:
    meet(2, state(), state(digest=5), state(digest=5))
    meet(1, state(digest=5))
    with pytest.raises(RankDiverged, match="digest"):
        meet(2, state(), state(digest=5), state(digest=6))
    with pytest.raises(RankDiverged, match="digest"):
        meet(2, state(digest=5))


@pytest.mark.parametrize("different", ["step", "routes"])
def test_all_ranks_must_be_in_one_step_and_route_alike(different: str) -> None:
    with pytest.raises(RankDiverged, match=different):
        meet(1, state(**{different: 5}))


def test_without_an_announcement_there_is_no_broadcast() -> None:
    comm = CountingComm(Recorded(b""))
    assert run_one(comm, []).items == []
    assert [name for name, _ in comm.operations] == ["allgather"]


@pytest.mark.parametrize("wait", [wait_awake, wait_asleep])
def test_a_wait_ends_when_the_exchange_is_done(wait: object) -> None:
    pending = Rows()
    wait(pending)  # type: ignore[operator]
    assert pending._asked == 61


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_skew_is_between_the_first_and_the_last_rank_whatever_their_order(order: tuple[int, ...]) -> None:
    entered = [1_800_000_000_000_000_000, 1_800_000_000_000_100_000, 1_800_000_000_000_250_000]
    rows = np.array([state(entered_ns=entered[index]) for index in order])
    assert Exchanged(rows, []).skew_s == pytest.approx(0.00025)
