"""A communicator that notes every operation of the step loop and its bytes, and has the real one do it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep_worker.parallel.comm import Comm, Pending, Row, Waiting


@dataclass
class CountingComm:
    """See `Comm`; every operation is one collective of MPI."""

    inner: Comm
    operations: list[tuple[str, int]] = field(default_factory=list)
    """(name, bytes that this rank hands in or, from a broadcast, gets), oldest first."""
    bells: int = 0

    def __post_init__(self) -> None:
        """Be the same rank of the same group."""
        self.rank, self.size = self.inner.rank, self.inner.size

    def start_allgather(self, row: Row) -> Pending:
        """See `Comm`."""
        self.operations.append(("allgather", row.nbytes))
        return self.inner.start_allgather(row)

    def ring(self) -> None:
        """See `Comm`; no collective."""
        self.bells += 1
        self.inner.ring()

    def listen(self) -> Waiting:
        """See `Comm`."""
        return self.inner.listen()

    def broadcast(self, data: bytearray) -> None:
        """See `Comm`."""
        self.operations.append(("broadcast", len(data)))
        self.inner.broadcast(data)

    def gather_once(self, values: list[int]) -> list[list[int]]:
        """See `Comm`."""
        self.operations.append(("gather_once", 8 * len(values)))
        return self.inner.gather_once(values)

    def share_text(self, text: str) -> str:
        """See `Comm`."""
        self.operations.append(("share_text", len(text)))
        return self.inner.share_text(text)

    def gather_text(self, text: str) -> list[str]:
        """See `Comm`."""
        self.operations.append(("gather_text", len(text)))
        return self.inner.gather_text(text)
