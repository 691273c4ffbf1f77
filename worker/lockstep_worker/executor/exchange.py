"""The exchange: the single small collective that opens a step, and the payload that follows only when it was announced.

Each rank contributes one int64 row and reads everybody's. Whatever a step decides before its next collective it decides
from these rows, so that all ranks decide alike. A step with nothing new costs this one allgather and not a byte more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from lockstep_worker import ranges
from lockstep_worker.errors import RankDiverged
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Comm, Pending, Row
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Inbound

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Inbound])


class RankState(NamedTuple):
    """What a rank tells in its row, which is these fields in this order. An example of two ranks in one data replica:

    step  active  running  tokens  free_blocks  digest  routes  payload_bytes  entered_ns
    812   5       4        9120    310          77120   0       118            1700000000000100000
    812   5       4        9120    310          77120   0       0              1700000000000230000
    """

    step: int
    active: int
    """Requests of this rank that are not ended."""
    running: int
    """Those of them that hold a slot."""
    tokens: int
    """Tokens of their prompts."""
    free_blocks: int
    digest: int
    """Running checksum of all tokens and plans so far; ranks of one data replica must agree."""
    routes: int
    """Running checksum of which request went to which data replica; all ranks must agree."""
    payload_bytes: int = 0
    """Rank 0: length of the payload that it will broadcast; 0 for none. The exchange sets it and the next, the last."""
    entered_ns: int = 0
    """Wall clock at which this rank was ready for the exchange."""


_INDEX = {name: index for index, name in enumerate(RankState._fields)}
_PAYLOAD_BYTES = _INDEX["payload_bytes"]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What all ranks know after an exchange, the same on each."""

    rows: Row
    items: list[Inbound]

    def of_ranks(self, name: str) -> Row:
        """Return one field of `RankState` of every rank: int64 [size]."""
        return self.rows[:, _INDEX[name]]

    def of_replicas(self, name: str, topology: Topology) -> Row:
        """Return one field of every data replica, whose ranks agree on it: int64 [replicas]."""
        return self.of_ranks(name)[:: topology.replica_size]

    @property
    def idle(self) -> bool:
        """No rank has work and nothing came in: the next exchange is the idle park's."""
        return not self.items and not any(self.of_ranks("active").tolist())

    @property
    def skew_s(self) -> float:
        """How much later the last rank entered than the first."""
        if len(self.rows) == 1:
            return 0.0
        entered = self.of_ranks("entered_ns").tolist()
        return (max(entered) - min(entered)) * 1e-9


class Exchange:
    """Posts and completes exchanges, in the same order on every rank.

    Args:
        comm: the group.
        metrics: counts operations, bytes and skipped payloads.
        topology: this rank's.
    """

    def __init__(self, comm: Comm, metrics: RankMetrics, topology: Topology) -> None:
        self._comm = comm
        alike = (("step", comm.size), ("digest", topology.replica_size), ("routes", comm.size))
        self._alike = [(_INDEX[name], count) for name, count in alike if count > 1]
        """Which fields must be the same, and of how many ranks that are behind one another."""
        self._metrics = metrics
        self._count_exchange = metrics.collectives_total[("exchange", "executed")].inc
        self._count_bytes = metrics.collective_bytes_total[("exchange",)].inc
        self._count_skipped = metrics.collectives_total[("payload", "skipped")].inc
        self._pending: Pending | None = None
        self._payload = b""

    @property
    def posted(self) -> bool:
        """Whether an exchange is under way."""
        return self._pending is not None

    def post(self, state: RankState, items: list[Inbound]) -> None:
        """Start the next exchange; only rank 0 brings items. Never blocks."""
        self._payload = _encoder.encode(items) if items and self._comm.size > 1 else b""
        self._items = items
        announced = len(self._payload) or len(items)
        row = np.array((*state[:_PAYLOAD_BYTES], announced, time.time_ns()), dtype=np.int64)
        self._pending = self._comm.start_allgather(row)
        self._count_exchange()
        self._count_bytes(row.nbytes)

    def complete(self, wait: Callable[[Pending], None]) -> Exchanged:
        """Finish the exchange and, if rank 0 announced one, the payload.

        Args:
            wait: returns once the allgather is done; decides between spinning and sleeping.

        Raises:
            RankDiverged: the ranks are not in the same step or did not compute the same tokens.
        """
        assert self._pending is not None, "complete() without post()"
        wait(self._pending)
        rows = self._pending.rows()
        self._pending = None
        if self._alike:
            self._check(rows)
        return Exchanged(rows, self._receive(rows.item(0, _PAYLOAD_BYTES)))

    def _receive(self, announced: int) -> list[Inbound]:
        if not announced:
            self._count_skipped()
            return []
        if self._comm.size == 1:
            return self._items
        data = bytearray(self._payload) if self._comm.rank == 0 else bytearray(announced)
        start = time.perf_counter()
        with ranges.span("broadcast"):
            self._comm.broadcast(data)
        self._metrics.collective_wait_seconds[("payload",)].observe(time.perf_counter() - start)
        self._metrics.collectives_total[("payload", "executed")].inc()
        self._metrics.collective_bytes_total[("payload",)].inc(len(self._payload))
        return self._items if self._comm.rank == 0 else _decoder.decode(data)

    def _check(self, rows: Row) -> None:
        columns = rows.T.tolist()  # numpy takes longer for the few integers of a column
        for index, alike in self._alike:
            values = columns[index]
            groups = [values[first : first + alike] for first in range(0, len(values), alike)]
            if any(group.count(group[0]) < alike for group in groups):
                raise RankDiverged(f"ranks disagree on {RankState._fields[index]}: {groups}")
