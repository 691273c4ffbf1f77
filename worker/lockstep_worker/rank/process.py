"""One rank's process: signals, the group, and what an error ends with. The main thread becomes the executor loop."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError, UnsupportedModel
from lockstep_worker.health.abort import CrashGuard
from lockstep_worker.health.parent import die_with_parent
from lockstep_worker.logs import setup_logs
from lockstep_worker.parallel.comm import Comm, MpiComm, SingleComm
from lockstep_worker.rank.frontend_child import check_frontend
from lockstep_worker.rank.rank import Rank

log = logging.getLogger("lockstep_worker.rank")


def run_rank(config: Config) -> int:
    """Run one rank and return its exit code."""
    drain: list[Callable[[], None]] = []
    early: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: drain[0]() if drain else early.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor turns Ctrl-C into a drain
    die_with_parent()
    comm: Comm = MpiComm() if config.world_size > 1 else SingleComm()
    setup_logs(f"rank {comm.rank}", config.log_level)
    rank = Rank(config, comm)
    drain.append(rank.drain)
    rank.asked_to_drain |= bool(early)
    try:
        if comm.rank == 0:
            check_frontend(config)
        rank.run()
    except BaseException as error:
        log.exception("the rank failed")
        code = contract.EXIT_CONFIG if isinstance(error, ConfigError | UnsupportedModel) else contract.EXIT_RANK_CRASH
        guard = CrashGuard(rank=comm.rank, mpi_abort=rank.mpi_abort, notify=lambda reason: rank.notify(reason, code))
        guard.arm(error, exit_code=code)
        guard.end()
    return contract.EXIT_OK
