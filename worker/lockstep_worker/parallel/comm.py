"""The collectives of the step loop. The only module that imports mpi4py.

A step needs two operations: one allgather of a small int64 row, posted without blocking, and one broadcast of bytes
whose length every rank already knows from the rows. A parked group needs a third: a bell, an empty message from rank 0
to each peer. Nothing here pickles, and nothing here decides how to wait.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int64]
_BELL_TAG = 7
"""Of the only messages between two ranks."""
_NOTHING = bytearray()


class Waiting(Protocol):
    """Something that will have happened."""

    def done(self) -> bool:
        """Make progress; True once it has. Never blocks."""


class Pending(Waiting, Protocol):
    """An allgather that was posted; done once every rank's row is here."""

    def rows(self) -> Row:
        """Return int64 [size, width]; only after `done()` was True. The array is reused two exchanges later."""


class Comm(Protocol):
    """What the executor needs of its peers. Tests count operations and bytes by wrapping one."""

    rank: int
    size: int

    def start_allgather(self, row: Row) -> Pending:
        """Post this rank's int64 [width]; all ranks post the same width in the same order."""

    def ring(self) -> None:
        """Rank 0: send every peer one bell; never blocks. Every peer takes it before the next one."""

    def listen(self) -> Waiting:
        """Other ranks: wait for rank 0's next bell."""

    def broadcast(self, data: bytearray) -> None:
        """Send rank 0's bytes into every rank's `data`; all ranks pass the same length."""

    def gather_once(self, values: list[int]) -> list[list[int]]:
        """Exchange a few integers at start, blocking; not for the step loop."""

    def share_text(self, text: str) -> str:
        """Return rank 0's text on every rank, blocking; not for the step loop. At most 4096 bytes."""

    def gather_text(self, text: str) -> list[str]:
        """Return every rank's text, blocking; not for the step loop. At most 512 bytes each."""


class _Ready:
    """The allgather of one rank: its own row, at once."""

    def __init__(self, row: Row) -> None:
        self._rows = row.reshape(1, -1)

    def done(self) -> bool:
        return True

    def rows(self) -> Row:
        return self._rows


class SingleComm:
    """A group of one rank: nothing is sent, nothing is serialised."""

    rank = 0
    size = 1

    def start_allgather(self, row: Row) -> Pending:
        """See `Comm`."""
        return _Ready(row.copy())

    def ring(self) -> None:
        """See `Comm`."""

    def listen(self) -> Waiting:
        """See `Comm`."""
        raise AssertionError("a group of one has nobody to listen to")

    def broadcast(self, data: bytearray) -> None:
        """See `Comm`."""

    def gather_once(self, values: list[int]) -> list[list[int]]:
        """See `Comm`."""
        return [list(values)]

    def share_text(self, text: str) -> str:
        """See `Comm`."""
        return text

    def gather_text(self, text: str) -> list[str]:
        """See `Comm`."""
        return [text]


class _MpiWaiting:
    """An MPI request; a complete one is not asked again."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._done = False

    def done(self) -> bool:
        if not self._done:
            self._done = self._request.Test()
        return self._done


class _MpiPending(_MpiWaiting):
    """An MPI_Iallgather; keeps its buffers alive until the request is complete."""

    def __init__(self, comm: MpiComm, row: Row) -> None:
        self._send = row.copy()
        self._receive = np.empty((comm.size, row.size), dtype=np.int64)
        super().__init__(comm.world.Iallgather(self._send, self._receive))

    def rows(self) -> Row:
        return self._receive


class MpiComm:
    """MPI_COMM_WORLD, initialised by mpi4py with MPI_THREAD_MULTIPLE."""

    def __init__(self) -> None:
        from mpi4py import MPI  # noqa: PLC0415 - importing initialises MPI, which a single rank must not need

        self.world = MPI.COMM_WORLD
        self.rank: int = self.world.Get_rank()
        self.size: int = self.world.Get_size()
        self._bells = [self.world.Send_init(_NOTHING, peer, _BELL_TAG) for peer in range(1, self.size) if not self.rank]
        self.threads_may_abort = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def start_allgather(self, row: Row) -> Pending:
        """See `Comm`."""
        return _MpiPending(self, row)

    def ring(self) -> None:
        """See `Comm`."""
        for bell in self._bells:
            bell.Wait()  # the one before was taken long ago
            bell.Start()

    def listen(self) -> Waiting:
        """See `Comm`."""
        return _MpiWaiting(self.world.Irecv(_NOTHING, 0, _BELL_TAG))

    def broadcast(self, data: bytearray) -> None:
        """See `Comm`."""
        self.world.Bcast(np.frombuffer(data, dtype=np.uint8), root=0)

    def gather_once(self, values: list[int]) -> list[list[int]]:
        """See `Comm`."""
        send = np.array(values, dtype=np.int64)
        receive = np.empty((self.size, send.size), dtype=np.int64)
        self.world.Allgather(send, receive)
        return receive.tolist()

    def share_text(self, text: str) -> str:
        """See `Comm`."""
        buffer = _pad(text, 4096)
        self.world.Bcast(buffer, root=0)
        return _unpad(buffer)

    def gather_text(self, text: str) -> list[str]:
        """See `Comm`."""
        send = _pad(text, 512)
        receive = np.empty((self.size, send.size), dtype=np.uint8)
        self.world.Allgather(send, receive)
        return [_unpad(row) for row in receive]

    def abort(self, code: int) -> None:
        """End every rank of the group with this exit code; may be called from any thread."""
        self.world.Abort(code)


def _pad(text: str, size: int) -> npt.NDArray[np.uint8]:
    encoded = text.encode()
    if len(encoded) > size:
        raise ValueError(f"a text of {len(encoded)} bytes is sent where {size} is the limit")
    return np.frombuffer(encoded.ljust(size, b"\0"), dtype=np.uint8).copy()


def _unpad(buffer: npt.NDArray[np.uint8]) -> str:
    return buffer.tobytes().rstrip(b"\0").decode()


def local_rank() -> int:
    """Number this rank on its node, from the launcher's environment (Open MPI, then SLURM); 0 when alone."""
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        if name in os.environ:
            return int(os.environ[name])
    return 0
