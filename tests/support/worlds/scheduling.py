"""The scheduler alone, with the device's results written by hand."""

from __future__ import annotations

import numpy as np

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.schedule.scheduler import Plan, Scheduler
from lockstep_worker.schedule.slots import Sequence, SlotTable
from lockstep_worker.schedule.update import Sampled, update_requests
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.worlds.tables import CPU

CONTEXT = 64
BLOCK = 4


def scheduler_of(*, slots: int = 4, blocks: int = 40, budget: int = 16) -> Scheduler:
    table = SlotTable(slots, CONTEXT, CONTEXT // BLOCK, CPU, vocab_size=1000)
    return Scheduler(table, BlockPool(blocks, BLOCK), budget)


def add(scheduler: Scheduler, handle: int, prompt: int | list[int], max_tokens: int = 8, *, priority: int = 0) -> None:
    ids = [handle] * prompt if isinstance(prompt, int) else prompt
    params = SamplingParams(max_tokens=max_tokens)
    scheduler.add(Sequence.of(NewRequest(handle, ids, params, priority), CONTEXT))


def handles(scheduler: Scheduler, plan: Plan | None) -> list[int]:
    return [] if plan is None else scheduler.table.handle[plan.rows].tolist()


def collect(scheduler: Scheduler, plan: Plan | None) -> None:
    """Do what the loop does with a forward that is done: token 9 for each row that samples; full rows end."""
    if plan is None:
        return
    table, rows = scheduler.table, plan.rows[plan.samples]
    tokens = np.full(rows.size, 9)
    update_requests(table, Sampled(rows, table.incarnation[rows], tokens, np.zeros(rows.size, dtype=np.uint8)))
    for slot in rows[table.length[rows] >= table.limit[rows]].tolist():
        scheduler.finish(slot)
    scheduler.pool.check()


def step(scheduler: Scheduler) -> Plan | None:
    plan = scheduler.schedule()
    collect(scheduler, plan)
    return plan
