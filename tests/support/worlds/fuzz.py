"""Random work for a group of one rank, and what must hold of every plan that comes of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.worlds.local_group import LocalGroup, Record


def random_requests(rng: random.Random, count: int, vocab_size: int, longest: int) -> list[NewRequest]:
    """Requests of all kinds; half of the prompts begin alike, so that prefixes are found again."""
    shared = [rng.randrange(vocab_size) for _ in range(longest)]
    requests = []
    for handle in range(1, count + 1):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.choice([1, 2, rng.randrange(1, longest)]))]
        if rng.random() < 0.5:
            prompt = shared[: rng.randrange(1, longest)] + prompt[:1]
        params, priority = random_params(rng, vocab_size), rng.choice([0, 0, 0, -1, 3])
        requests.append(NewRequest(handle, prompt[:longest], params, priority))
    return requests


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.choice([1, 1, 2, 5, 17, 30]),
        temperature=rng.choice([0.0, 0.0, 0.8, 1.5]),
        top_p=rng.choice([1.0, 0.8]),
        top_k=rng.choice([0, 7]),
        seed=rng.getrandbits(63),
        end_ids=tuple(rng.sample(range(vocab_size), rng.choice([0, 2, 6]))),
        stop_token_ids=tuple(rng.sample(range(vocab_size), rng.choice([0, 0, 5]))),
        min_tokens=rng.choice([0, 0, 1, 4]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.0, 0.6]),
        logit_bias=rng.choice([(), (), ((rng.randrange(vocab_size), 4.0),)]),
        logprobs=rng.choice([-1, -1, -1, 2]),
    )


@dataclass
class Traffic:
    """Brings requests in bursts and cancels some, wherever they are; a shutdown when all are out."""

    rng: random.Random
    requests: list[NewRequest]
    cancel_rate: float
    sent: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    _closed: bool = False

    def wait(self, timeout_s: float) -> None:
        pass

    def take(self) -> list[Inbound]:
        items: list[Inbound] = []
        for _ in range(self.rng.choice([0, 0, 0, 0, 1, 2, 6])):
            if self.requests:
                request = self.requests.pop(0)
                items.append(request)
                self.sent.append(request.handle)
        if self.sent and self.rng.random() < self.cancel_rate:
            handle = self.rng.choice(self.sent[-12:])  # queued, running, ended, or cancelled already
            self.cancelled.add(handle)
            items.append(Cancel(handle))
        if not self.requests and not self._closed:
            self._closed = True
            items.append(Shutdown())
        return items


@dataclass
class Inspector:
    """Checks each plan and the table against each other before the plan runs."""

    scheduler: Scheduler
    max_num_tokens: int
    _running: set[int] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    """Which kinds of situation came up, so that a test can ask for them."""

    def __call__(self, plan: Plan) -> None:
        assert plan.counts.min() >= 1
        assert plan.counts.sum() <= self.max_num_tokens
        assert np.unique(plan.rows).size == plan.rows.size
        decodes = slice(plan.num_decodes)
        assert (plan.counts[decodes] == plan.draws[decodes]).all()
        assert (plan.counts[decodes] <= 1 + self.scheduler.table.drafts.shape[1]).all()
        self._check_order()
        self._check_counts()
        for row, start, count in zip(plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True):
            self._check_row(row, start, count)
        if self.scheduler.waiting and self.scheduler.table.num_free:
            self.seen.add("waits for blocks or budget")
        if (plan.counts[plan.num_decodes :] > 1).any() and not plan.draws.all():
            self.seen.add("chunk")

    def _check_order(self) -> None:
        """Nobody overtakes: the queue stands by priority, then arrival; no newcomer's turn was after one who waits."""
        running = [self.scheduler.table.sequence(slot) for slot in self.scheduler._running]
        waiting = [(sequence.priority, sequence.handle) for sequence in self.scheduler.waiting]
        assert waiting == sorted(waiting)
        newcomers = [(one.priority, one.handle) for one in running if one.handle not in self._running]
        assert not newcomers or not waiting or max(newcomers) < waiting[0]
        self._running = {one.handle for one in running}
        for priority in {one.priority for one in running}:
            equals = [one.handle for one in (*running, *self.scheduler.waiting) if one.priority == priority]
            assert equals == sorted(equals)
        if newcomers and any(handle < max(newcomers)[1] for _, handle in waiting):
            self.seen.add("overtakes by priority")

    def _check_counts(self) -> None:
        table = self.scheduler.table
        held = [sequence for sequence in table.sequences if sequence is not None]
        assert self.scheduler.num_running == len(held)
        diverted = [bool(one.params.stop_token_ids) or one.params.logprobs >= 0 for one in held]
        assert table.num_ineligible == sum(diverted)
        assert self.scheduler.num_requests == len(held) + len(self.scheduler.waiting)

    def _check_row(self, row: int, start: int, count: int) -> None:
        """The row has blocks for what it computes, and shares none of those that it writes to."""
        table, pool = self.scheduler.table, self.scheduler.pool
        sequence, size = table.sequence(row), pool.block_size
        assert table.block_table[row, : table.num_blocks[row]].tolist() == sequence.blocks
        assert start + count <= len(sequence.blocks) * size
        assert start + count <= sequence.limit - 1 or start + count <= sequence.tokens.size
        assert table.computed[row] == start + count <= table.length[row] + table.in_flight[row]
        for index in range(start // size, (start + count - 1) // size + 1):
            assert pool._references[sequence.blocks[index]] == 1, "a block that is written to has another owner"
        if start and count > 1:
            self.seen.add("prefix or chunk goes on")


def run_fuzz(
    group: LocalGroup, seed: int, *, num_requests: int, cancel_rate: float, longest: int
) -> tuple[list[NewRequest], Traffic, Record, Inspector]:
    """Run random traffic through a group."""
    rng = random.Random(seed)
    requests = random_requests(rng, num_requests, group.model.vocab_size, longest)
    traffic = Traffic(rng, list(requests), cancel_rate)
    inspector = Inspector(group.scheduler, group.max_num_tokens)
    record = group.follow(traffic, Record(), inspector)
    return requests, traffic, record, inspector
