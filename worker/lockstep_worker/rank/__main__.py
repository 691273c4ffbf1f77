"""One rank of a group, from its start to its exit code: what mpirun (or, for one rank, the supervisor) starts.

`python -m lockstep_worker.rank CONFIG_JSON`. The main thread becomes the executor loop and does nothing else that
blocks.
"""

from __future__ import annotations

import gc
import logging
import signal
import sys
import time
from collections.abc import Callable

import torch
import zmq
from prometheus_client import CollectorRegistry

from lockstep_worker import contract
from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError, UnsupportedModel
from lockstep_worker.executor.intake import Intake, Limits
from lockstep_worker.executor.loop import Loop, Parts
from lockstep_worker.executor.publish import Publisher, say_engine_down
from lockstep_worker.executor.routing import Router
from lockstep_worker.health.abort import CrashGuard, arm_last_resort, end_group
from lockstep_worker.health.hang import Hang, HangDetector
from lockstep_worker.health.parent import die_with_parent
from lockstep_worker.health.peers import Peers
from lockstep_worker.health.rank_server import RankServer
from lockstep_worker.health.readiness import Readiness, State
from lockstep_worker.logs import setup_logs
from lockstep_worker.metrics.families import HangCollector, RankMetrics
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import Comm, MpiComm, SingleComm, local_rank
from lockstep_worker.parallel.groups import form_group, leave_group
from lockstep_worker.parallel.topology import Replica
from lockstep_worker.phase import LOADING, Place
from lockstep_worker.rank.frontend_child import FrontendProcess, Link, check_frontend
from lockstep_worker.runner.capacity import choose_device, choose_max_model_len, choose_num_blocks
from lockstep_worker.runner.runner import Launcher
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import Drained

log = logging.getLogger("lockstep_worker.rank")  # started with -m, this module is called __main__


class Rank:
    """Everything a rank holds beside the loop: its watch, its metrics, its link.

    Args:
        config: the group's configuration.
        comm: the group.
    """

    def __init__(self, config: Config, comm: Comm) -> None:
        self.config = config
        self.comm = comm
        self.replica = Replica.of(comm.rank, tensor_parallel=config.tensor_parallel, data_parallel=config.data_parallel)
        self.registry = CollectorRegistry()
        self.metrics = RankMetrics(self.registry, comm.rank)
        self.readiness = Readiness()
        self.detector = HangDetector(config.hang_timeout, on_hang=self._end_hung)
        self.registry.register(HangCollector(self._read_detector, comm.rank))
        self.link = Link.share(comm)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.frontend: FrontendProcess | None = None
        self.asked_to_drain = False
        self._loop: Loop | None = None
        self._server = RankServer(
            self.registry,
            self.readiness,
            self.detector,
            lambda: self.place,
            rank=comm.rank,
            host=config.host,
            port=config.metrics_port + local_rank(),
        )
        self._peers = Peers.share(comm, self._server.host, self._server.port)

    # --- start, work, end -------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Load, serve until the shutdown, and leave in order."""
        self._server.start()
        self.readiness.move(State.LOADING)
        with self.detector.pause("load"):
            self._loop = self._build()
        self.readiness.move(State.READY)
        self.detector.start()
        gc.collect()
        gc.freeze()  # what lives now lives for ever; collections must not walk it in the middle of a step
        self._loop.run()
        self._leave()

    def _build(self) -> Loop:
        config, comm = self.config, self.comm
        device = choose_device(config.device, local_rank())
        log.info("loading %s on %s as rank %d of %d", config.model, device, comm.rank, comm.size)
        start = time.monotonic()
        replica = self.replica
        model = load_model(
            config.model,
            device=device,
            dtype=config.dtype,
            tp_rank=replica.rank,
            tp_size=replica.width,
            tp_group=form_group(comm, replica, device),
        )
        log.info("the model is loaded after %.1f s", time.monotonic() - start)
        max_model_len = choose_max_model_len(config.max_model_len, model.max_model_len)
        mine = choose_num_blocks(config, model.kv_bytes_per_block(config.block_size), max_model_len, device)
        num_blocks = min(row[0] for row in comm.gather_once([mine]))  # also: every rank has loaded its part
        model.create_cache(num_blocks, config.block_size)
        log.info(
            "KV cache: %d blocks of %d tokens; a request may have up to %d tokens",
            num_blocks,
            config.block_size,
            max_model_len,
        )
        return self._assemble(model, max_model_len, num_blocks, device)

    def _assemble(self, model: Model, max_model_len: int, num_blocks: int, device: torch.device) -> Loop:
        config = self.config
        blocks_per_sequence = -(-max_model_len // config.block_size)
        table = SlotTable(config.max_batch_size, max_model_len, blocks_per_sequence, device, model.vocab_size)
        pool = BlockPool(num_blocks, config.block_size, prefix_cache=config.prefix_cache)
        publisher = intake = None
        if self.replica.rank == 0:
            publisher = Publisher(self.context, self.link.outlet, self.comm.rank)
        if publisher is not None and self.comm.rank == 0:
            limits = Limits(model.vocab_size, max_model_len, num_blocks, config.block_size)
            intake = Intake(self.context, self.link.inbound, limits, publisher.send)
            self._open_frontend(model, max_model_len)
        self.publisher = publisher
        parts = Parts(
            comm=self.comm,
            replica=self.replica,
            router=Router(self.comm, self.replica, pool, self.metrics, cache_aware=config.is_cache_aware),
            scheduler=Scheduler(table, pool, config.max_num_tokens),
            launcher=Launcher(model, table, config.block_size),
            detector=self.detector,
            metrics=self.metrics,
            source=intake,
            publisher=publisher,
        )
        return Loop(parts, max_model_len=max_model_len, overlap=config.overlap, debug_checks=config.debug_checks)

    def _open_frontend(self, model: Model, max_model_len: int) -> None:
        self.frontend = FrontendProcess(
            self.config, self.link, model, max_model_len, on_death=self._end_without_frontend
        )
        if self.asked_to_drain:
            self.frontend.drain()

    def _leave(self) -> None:
        """Every request is done: tell the frontend, wait for it, leave MPI and torch in order."""
        self.detector.stop()
        self.readiness.move(State.DRAINING)
        if self.frontend is not None:
            self.frontend.expect_end()
        if self.publisher is not None:
            self.publisher.send(Drained(self.comm.rank))
            self.publisher.close()
        if self.frontend is not None:
            self.frontend.wait()
            self.link.remove()
        leave_group()

    # --- what goes wrong, and signals -------------------------------------------------------------------------------
    def drain(self) -> None:
        """SIGUSR1: rank 0 has its frontend drain; the frontend sends the shutdown. The others follow the loop."""
        self.asked_to_drain = True
        if self.frontend is not None:
            self.frontend.drain()

    def _end_without_frontend(self, exit_code: int) -> None:
        self.end(exit_code, "the frontend died", blamed=self.comm.rank)

    def _end_hung(self, hang: Hang) -> None:
        """Find out who is stuck, and end the whole group; the watcher thread calls it."""
        arm_last_resort()
        verdict = self._peers.judge(self.place, hang.reason)
        self.end(contract.EXIT_HANG, verdict.reason, blamed=verdict.rank)

    def end(self, exit_code: int, reason: str, *, blamed: int | None) -> None:
        """End the whole group from any thread."""
        end_group(
            exit_code,
            reason,
            rank=blamed,
            mpi_abort=self.mpi_abort,
            notify=lambda reason: self.notify(reason, exit_code),
            state=self._describe,
        )

    @property
    def place(self) -> Place:
        """Where the loop stands."""
        return LOADING if self._loop is None else self._loop.place

    @property
    def mpi_abort(self) -> Callable[[int], None] | None:
        """`MPI_Abort`, where it may be called from any thread."""
        return self.comm.abort if isinstance(self.comm, MpiComm) and self.comm.threads_may_abort else None

    def notify(self, reason: str, exit_code: int) -> None:
        """Tell the frontend why its streams end."""
        say_engine_down(self.link.outlet, self.comm.rank, reason, exit_code)

    def _read_detector(self) -> tuple[bool, float, dict[str, float], int]:
        detector = self.detector
        return detector.armed, detector.last_progress_timestamp(), detector.paused_seconds(), detector.trips

    def _describe(self) -> str:
        return "still loading" if self._loop is None else self._loop.describe()


def main() -> int:
    """Run one rank and return its exit code."""
    drain: list[Callable[[], None]] = []
    early: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: drain[0]() if drain else early.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor turns Ctrl-C into a drain
    die_with_parent()
    config = Config.from_json(sys.argv[1])
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


if __name__ == "__main__":
    sys.exit(main())
