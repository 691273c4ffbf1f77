"""A rank that fails or drains on demand, in the place of the real one, under the real supervisor and mpirun.

`served_model_name` says what it does and `model` is where it leaves notes: no environment reaches ranks on other hosts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.health.abort import CrashGuard, end_group
from lockstep_worker.health.parent import die_with_parent


def main() -> None:
    config = Config.from_json(sys.argv[1])
    notes, behaviour = Path(config.model), config.served_model_name
    die_with_parent()
    mpi = None
    rank = 0
    if config.world_size > 1:
        from mpi4py import MPI  # noqa: PLC0415  (one rank needs none)

        mpi = MPI.COMM_WORLD
        rank = mpi.Get_rank()
        assert mpi.Get_size() == config.world_size

    def drain(_: int, __: FrameType | None) -> None:
        (notes / f"{rank}.drained").touch()
        if mpi is not None:
            mpi.Barrier()
        sys.exit(0)

    signal.signal(signal.SIGUSR1, signal.SIG_IGN if behaviour == "ignore-drain" else drain)
    if behaviour == "ignore-drain":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (notes / f"{rank}.new").write_text(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')} {os.uname().nodename}")
    (notes / f"{rank}.new").rename(notes / f"{rank}.started")
    act(behaviour, rank, mpi.Abort if mpi is not None else None)


def act(behaviour: str, rank: int, abort: Callable[[int], None] | None) -> None:
    def end() -> None:
        end_group(contract.EXIT_HANG, "no progress", rank=rank, mpi_abort=abort, notify=None)

    if behaviour == "hang" and rank == 1:
        threading.Thread(target=end).start()
    if behaviour == "crash":
        guard = CrashGuard(rank=rank, mpi_abort=abort, notify=None)
        guard.arm(KeyError("slot 7"))
        guard.end()
    if behaviour == "lost":
        if rank == 1:
            time.sleep(1)  # the peer speaks first, as one whose collective broke does
            os.kill(os.getpid(), signal.SIGKILL)
        guard = CrashGuard(rank=rank, mpi_abort=None, notify=None)
        guard.arm(RuntimeError("Connection reset by peer"))
        time.sleep(60)
    if behaviour == "raise" and rank == 1:
        raise RuntimeError("uncaught")
    if behaviour == "exit":
        return
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
