"""The exchange: the single small collective that opens a step, and the payload that follows only when it was announced.

Each rank contributes one int64 row and reads everybody's. Whatever a step decides before its next collective it decides
from these rows, so that all ranks decide alike. A step with nothing new costs this one allgather and not a byte more.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from lockstep_worker.errors import RankDiverged
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.parallel.comm import Comm, Pending, Row
from lockstep_worker.wire.messages import Inbound

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Inbound])


class Column(enum.IntEnum):
    """The row's layout."""

    STEP = 0
    PAYLOAD_BYTES = 1
    """Rank 0: length of the payload that it will broadcast; 0 for none."""
    ACTIVE = 2
    """Requests of this rank that are not ended."""
    RUNNING = 3
    """Those of them that hold a slot."""
    TOKENS = 4
    """Tokens of their prompts."""
    FREE_BLOCKS = 5
    DIGEST = 6
    """Running checksum of all tokens and plans so far; ranks of one data replica must agree."""
    ROUTES = 7
    """Running checksum of which request went to which data replica; all ranks must agree."""
    ENTERED_NS = 8
    """Wall clock at which this rank was ready for the exchange."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a rank tells in its row, beside the payload."""

    step: int
    active: int
    running: int
    tokens: int
    free_blocks: int
    digest: int
    routes: int


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What all ranks know after an exchange, the same on each."""

    rows: Row
    items: list[Inbound]

    @property
    def idle(self) -> bool:
        """No rank has work and nothing came in: the next exchange is the idle park's."""
        return not self.items and not self.rows[:, Column.ACTIVE].any()

    @property
    def skew_s(self) -> float:
        """How much later the last rank entered than the first."""
        entered = self.rows[:, Column.ENTERED_NS].tolist()
        return float(max(entered) - min(entered)) * 1e-9


class Exchange:
    """Posts and completes exchanges, in the same order on every rank.

    Args:
        comm: the group.
        metrics: counts operations, bytes and skipped payloads.
        width: how many consecutive ranks form a data replica; default: all of them.
    """

    def __init__(self, comm: Comm, metrics: RankMetrics, width: int | None = None) -> None:
        self._comm = comm
        self._width = width or comm.size
        self._metrics = metrics
        self._pending: Pending | None = None
        self._payload = b""

    @property
    def posted(self) -> bool:
        """Whether an exchange is under way."""
        return self._pending is not None

    def post(self, status: Status, items: list[Inbound]) -> None:
        """Start the next exchange; only rank 0 brings items. Never blocks."""
        self._payload = _encoder.encode(items) if items and self._comm.size > 1 else b""
        self._items = items
        announced = len(self._payload) or len(items)
        row = np.array(
            [
                status.step,
                announced,
                status.active,
                status.running,
                status.tokens,
                status.free_blocks,
                status.digest,
                status.routes,
                time.time_ns(),
            ],
            dtype=np.int64,
        )
        self._pending = self._comm.start_allgather(row)
        self._count("exchange", "executed", row.nbytes)

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
        self._check(rows)
        return Exchanged(rows, self._receive(int(rows[0, Column.PAYLOAD_BYTES])))

    def _receive(self, announced: int) -> list[Inbound]:
        if not announced:
            self._count("payload", "skipped", 0)
            return []
        if self._comm.size == 1:
            return self._items
        data = bytearray(self._payload) if self._comm.rank == 0 else bytearray(announced)
        start = time.perf_counter()
        self._comm.broadcast(data)
        self._metrics.collective_wait_seconds[("payload",)].observe(time.perf_counter() - start)
        self._count("payload", "executed", len(self._payload))
        return self._items if self._comm.rank == 0 else _decoder.decode(data)

    def _check(self, rows: Row) -> None:
        for column, width in ((Column.STEP, len(rows)), (Column.DIGEST, self._width), (Column.ROUTES, len(rows))):
            values = rows[:, column].reshape(-1, width)
            if (values != values[:, :1]).any():
                raise RankDiverged(f"ranks disagree on {column.name.lower()}: {values.tolist()}")

    def _count(self, op: str, outcome: str, size: int) -> None:
        self._metrics.collectives_total[(op, outcome)].inc()
        if size:
            self._metrics.collective_bytes_total[(op,)].inc(size)
