"""A group of one rank inside the test's own process: the real loop, scheduler, model and sampler, without a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.executor.loop import Loop, Parts, Source
from lockstep_worker.executor.routing import Router
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics.families import RankMetrics
from lockstep_worker.model.forward import Model
from lockstep_worker.parallel.comm import Comm, SingleComm
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.runner.capture import Capture, Program
from lockstep_worker.runner.runner import Run, Runner
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Int64
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import FinishCode, Inbound, NewRequest, Shutdown, Started
from lockstep_worker.wire.params import SamplingParams


class Watch(Runner):
    """The real runner; looks at every plan before it runs."""

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        budget: int,
        topology: Topology,
        look: Callable[[Plan], None],
        eager: Counter[str],
    ) -> None:
        super().__init__(model, scheduler.table, scheduler.pool.block_size, budget, topology)
        self.look, self.eager = look, eager

    def run(self, plan: Plan) -> Run:
        if not plan.is_empty:
            self.look(plan)
        run = super().run(plan)
        self.eager[run.eager_reason] += 1
        return run


def run_again(program: Program) -> Program:
    """A `Capture` without a device: a replay is another call, on the same memory."""
    program()
    return program


@dataclass
class Script:
    """Hands the loop its items: a list an exchange."""

    turns: list[list[Inbound]]

    def wait(self, timeout_s: float) -> None:
        pass

    def take(self) -> list[Inbound]:
        return self.turns.pop(0) if self.turns else []


@dataclass
class Record:
    """Stands where the link's publisher does and keeps what every request got."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    codes: dict[int, FinishCode] = field(default_factory=dict)
    logprobs: dict[int, list[tuple[float, list[int], list[float]]]] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    messages: int = 0

    def send(self, message: object) -> None:
        if isinstance(message, Started):
            assert not self.cached.keys() & set(message.handles), "a request is told twice"
            assert not self.tokens.keys() & set(message.handles), "it is told after the first token"
            self.cached.update(zip(message.handles, message.cached_tokens, strict=True))

    def publish(self, step: int, handle_of: Int64, sampled: Sampled, cancelled: list[int]) -> None:
        self.messages += 1
        self._note_logprobs(handle_of, sampled)
        for row, token, code in zip(*sampled.flatten(), strict=True):
            self._note(int(handle_of[row]), int(token), int(code))
        for handle in cancelled:
            assert handle not in self.codes, f"a second end of {handle}"
            self.codes[handle] = FinishCode.CANCELLED

    def _note_logprobs(self, handle_of: Int64, sampled: Sampled) -> None:
        """Take them as the frontend does, from what travels."""
        if sampled.logprobs is not None:
            rows = sampled.flatten()[0]
            for index, entry in sampled.logprobs.pack(rows).unpack().items():
                self.logprobs.setdefault(int(handle_of[rows[index]]), []).append(entry)

    def _note(self, handle: int, token: int, code: int) -> None:
        assert handle not in self.codes, f"a token after the end of {handle}"
        self.tokens.setdefault(handle, []).append(token)
        if code:
            self.codes[handle] = FinishCode(code)


@dataclass
class LocalGroup:
    """Builds a fresh engine around a loaded model and runs scripts through it."""

    model: Model
    max_batch_size: int = 64
    max_num_tokens: int = 256
    num_blocks: int = 2048
    block_size: int = 16
    overlap: bool = True
    prefix_cache: bool = True
    comm: Comm = field(default_factory=SingleComm)
    topology: Topology | None = None
    """Default: all ranks run every request."""
    cache_aware: bool = True
    max_drafts: int = 0
    capture: Capture | None = None
    """Decodes are replays of programs that this makes; None runs everything eager."""
    eager: Counter[str] = field(default_factory=Counter)
    """Why runs were no replays, how often; "" are the replays."""

    def __post_init__(self) -> None:
        longest = self.model.max_model_len
        blocks = -(-longest // self.block_size)
        table = SlotTable(self.max_batch_size, longest, blocks, max_drafts=self.max_drafts)
        pool = BlockPool(self.num_blocks, self.block_size, prefix_cache=self.prefix_cache)
        self.model.create_cache(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(table, pool, self.max_num_tokens)
        self.registry = CollectorRegistry()
        self.metrics = RankMetrics(self.registry, 0)
        self.detector = HangDetector(0, on_hang=lambda hang: None)
        self.topology = self.topology or Topology.of(self.comm.rank, tensor=self.comm.size)
        self.router = Router(self.comm, self.topology, pool, self.metrics, cache_aware=self.cache_aware)

    def run(self, turns: Iterable[Sequence[Inbound]]) -> Record:
        return self.follow(Script([*map(list, turns), [Shutdown()]]), Record())

    def follow(self, source: Source, record: Record, look: Callable[[Plan], None] = lambda plan: None) -> Record:
        """Run until the source's shutdown; `look` sees every plan."""
        assert self.topology is not None
        runner = Watch(self.model, self.scheduler, self.max_num_tokens, self.topology, look, self.eager)
        if self.capture is not None:
            runner.use_graphs(self.capture, self.model.max_model_len)
        parts = Parts(
            comm=self.comm,
            topology=self.topology,
            router=self.router,
            scheduler=self.scheduler,
            runner=runner,
            detector=self.detector,
            metrics=self.metrics,
            source=source if self.comm.rank == 0 else None,
            publisher=record,  # type: ignore[arg-type]
        )
        Loop(parts, max_model_len=self.model.max_model_len, overlap=self.overlap, debug_checks=True).run()
        assert self.scheduler.num_requests == 0
        assert self.scheduler.table.num_free == self.max_batch_size
        assert self.scheduler.pool.num_free == self.num_blocks
        return record

    def generate(self, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
        record = self.run([[NewRequest(i + 1, prompt, params) for i, prompt in enumerate(prompts)]])
        return [record.tokens[i + 1] for i in range(len(prompts))]
