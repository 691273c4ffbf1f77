"""A communicator that notes every operation of the step loop and its bytes, and has the real one do it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep_worker.dist.comm import Comm, Pending, Row


@dataclass
class CountingComm:
    inner: Comm
    operations: list[tuple[str, int]] = field(default_factory=list)
    """(name, bytes that every rank hands in or gets)"""

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    def start_allgather(self, row: Row) -> Pending:
        self.operations.append(("allgather", row.nbytes))
        return self.inner.start_allgather(row)

    def broadcast(self, data: bytearray) -> None:
        self.operations.append(("broadcast", len(data)))
        self.inner.broadcast(data)

    def gather_once(self, values: list[int]) -> list[list[int]]:
        self.operations.append(("gather_once", 8 * len(values)))
        return self.inner.gather_once(values)

    def share_text(self, text: str) -> str:
        self.operations.append(("share_text", len(text)))
        return self.inner.share_text(text)

    def count(self, name: str) -> int:
        return sum(operation == name for operation, _ in self.operations)
