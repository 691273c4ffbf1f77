"""A rank's life beside the loop: its watch, its metrics, its link; start, work, end, and what goes wrong."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable

import zmq
from prometheus_client import CollectorRegistry

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.executor.intake import Intake
from lockstep_worker.executor.loop import Loop
from lockstep_worker.executor.publish import Publisher, say_engine_down
from lockstep_worker.health.abort import arm_last_resort, end_group
from lockstep_worker.health.hang import Hang, HangDetector
from lockstep_worker.health.peers import Peers
from lockstep_worker.health.rank_server import RankServer
from lockstep_worker.health.readiness import Readiness, State
from lockstep_worker.metrics.families import HangCollector, RankMetrics
from lockstep_worker.model.forward import Model
from lockstep_worker.parallel.comm import Comm, MpiComm, local_rank
from lockstep_worker.parallel.groups import leave_groups
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.phase import LOADING, Standing
from lockstep_worker.rank.assemble import Seams, assemble, describe_start, load
from lockstep_worker.rank.frontend_child import FrontendProcess
from lockstep_worker.rank.link import LinkAddresses
from lockstep_worker.wire.messages import Drained

log = logging.getLogger(__name__)


class Rank:
    """Everything a rank holds beside the loop: its watch, its metrics, its link.

    Args:
        config: the group's configuration.
        comm: the group.
    """

    def __init__(self, config: Config, comm: Comm) -> None:
        self.config = config
        self.comm = comm
        self.topology = Topology.of(comm.rank, data=config.data_parallel, tensor=config.tensor_parallel)
        self.registry = CollectorRegistry()
        self.metrics = RankMetrics(self.registry, comm.rank)
        self.readiness = Readiness()
        self.detector = HangDetector(config.hang_timeout, on_hang=self._end_hung)
        self.registry.register(HangCollector(self._read_detector, comm.rank))
        self.link = LinkAddresses.share(comm)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.frontend: FrontendProcess | None = None
        self.publisher: Publisher | None = None
        self.asked_to_drain = False
        self._loop: Loop | None = None
        self._server = RankServer(
            self.registry,
            self.readiness,
            self.detector,
            lambda: self.standing,
            rank=comm.rank,
            host=config.host,
            port=config.metrics_port + local_rank(),
        )
        self._peers = Peers.share(comm, self._server.host, self._server.port)

    # --- start, work, end -------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Load, serve until the shutdown, and leave in order."""
        start = time.monotonic()
        self._server.start()
        self.readiness.move(State.LOADING)
        with self.detector.pause("load"):
            self._loop = self._build()
        self.readiness.move(State.READY)
        log.info("%s", describe_start(self.metrics, time.monotonic() - start))
        self.detector.start()
        gc.collect()
        gc.freeze()  # what lives now lives for ever; collections must not walk it in the middle of a step
        self._loop.run()
        self._leave()

    def _build(self) -> Loop:
        loaded = load(self.config, self.comm, self.topology, self.metrics)
        intake = None
        if self.topology.is_leader:
            self.publisher = Publisher(self.context, self.link.outlet, self.comm.rank)
        if self.publisher is not None and self.comm.rank == 0:
            intake = Intake(self.context, self.link.inbound, loaded.limits(self.config), self.publisher.send)
            self._open_frontend(loaded.model, loaded.max_model_len)
        seams = Seams(self.comm, self.detector, self.metrics, intake, self.publisher)
        return assemble(self.config, loaded, seams)

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
        leave_groups()

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
        verdict = self._peers.judge(self.standing, hang.reason)
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
    def standing(self) -> Standing:
        """Where the loop stands."""
        return LOADING if self._loop is None else self._loop.standing

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
