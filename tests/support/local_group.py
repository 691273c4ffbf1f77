"""A group of one rank inside the test's own process: the real loop, scheduler, model and sampler, without a link."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from lockstep_worker.dist.comm import Comm, SingleComm
from lockstep_worker.dist.replica import Replica
from lockstep_worker.executor.launch import Launched, Launcher
from lockstep_worker.executor.loop import Loop, Parts, Source
from lockstep_worker.executor.routing import Router
from lockstep_worker.executor.scheduler import Plan, Scheduler
from lockstep_worker.executor.slots import Int64, SlotTable
from lockstep_worker.executor.update import Sampled
from lockstep_worker.health.hang import HangDetector
from lockstep_worker.metrics import RankMetrics
from lockstep_worker.model.cache import BlockPool
from lockstep_worker.model.forward import Model
from lockstep_worker.request import FinishCode, Inbound, NewRequest, SamplingParams, Shutdown, Started


class Watch(Launcher):
    """The real launcher; looks at every plan before it runs."""

    def __init__(self, scheduler: Scheduler, model: Model, look: Callable[[Plan], None]) -> None:
        super().__init__(model, scheduler.table, scheduler.pool.block_size)
        self.look = look

    def launch(self, plan: Plan) -> Launched:
        self.look(plan)
        return super().launch(plan)


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

    def publish(self, step: int, handle_of: Int64, sampled: Sampled | None, cancelled: list[int]) -> None:
        self.messages += 1
        if sampled is not None:
            self._note_logprobs(handle_of, sampled)
            for row, token, code in zip(sampled.rows, sampled.tokens, sampled.codes, strict=True):
                self._note(int(handle_of[row]), int(token), int(code))
        for handle in cancelled:
            assert handle not in self.codes, f"a second end of {handle}"
            self.codes[handle] = FinishCode.CANCELLED

    def _note_logprobs(self, handle_of: Int64, sampled: Sampled) -> None:
        """Take them as the frontend does, from what travels."""
        if sampled.logprobs is not None:
            for place, entry in sampled.logprobs.pack(sampled.rows).unpack().items():
                self.logprobs.setdefault(int(handle_of[sampled.rows[place]]), []).append(entry)

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
    replica: Replica | None = None
    """Default: all ranks run every request."""
    cache_aware: bool = True

    def __post_init__(self) -> None:
        longest = self.model.max_model_len
        table = SlotTable(
            self.max_batch_size, longest, -(-longest // self.block_size), self.model.device, self.model.vocab_size
        )
        pool = BlockPool(self.num_blocks, self.block_size, prefix_cache=self.prefix_cache)
        self.model.create_cache(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(table, pool, self.max_num_tokens)
        self.registry = CollectorRegistry()
        self.metrics = RankMetrics(self.registry, 0)
        self.detector = HangDetector(0, on_hang=lambda hang: None)
        self.replica = self.replica or Replica(rank=self.comm.rank, width=self.comm.size)
        self.router = Router(self.comm, self.replica, pool, self.metrics, cache_aware=self.cache_aware)

    def run(self, turns: Iterable[Sequence[Inbound]]) -> Record:
        return self.follow(Script([*map(list, turns), [Shutdown()]]), Record())

    def follow(self, source: Source, record: Record, look: Callable[[Plan], None] = lambda plan: None) -> Record:
        """Run until the source's shutdown; `look` sees every plan."""
        assert self.replica is not None
        parts = Parts(
            comm=self.comm,
            replica=self.replica,
            router=self.router,
            scheduler=self.scheduler,
            launcher=Watch(self.scheduler, self.model, look),
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
