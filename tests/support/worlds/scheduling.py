"""The scheduler alone, with the device's results written by hand."""

from __future__ import annotations

import numpy as np

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.schedule.update import update_requests
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams

CONTEXT = 64
BLOCK = 4


def scheduler_of(*, slots: int = 4, blocks: int = 40, budget: int = 16, drafts: int = 0) -> Scheduler:
    table = SlotTable(slots, CONTEXT, CONTEXT // BLOCK, max_drafts=drafts)
    return Scheduler(table, BlockPool(blocks, BLOCK), budget)


def add(scheduler: Scheduler, handle: int, prompt: int | list[int], max_tokens: int = 8, *, priority: int = 0) -> None:
    ids = [handle] * prompt if isinstance(prompt, int) else prompt
    params = SamplingParams(max_tokens=max_tokens)
    scheduler.add(Sequence.of(NewRequest(handle, ids, params, priority), CONTEXT))


def handles(scheduler: Scheduler, plan: Plan) -> list[int]:
    found: list[int] = scheduler.table.handle[plan.rows].tolist()
    return found


def collect(scheduler: Scheduler, plan: Plan, brought: int = 1) -> None:
    """Do what the loop does with a run that is done: tokens 9 for each row that draws; full rows end.

    A row brings `brought` tokens, or as many as it draws.
    """
    table, drawing = scheduler.table, plan.draws > 0
    rows, draws = plan.rows[drawing], plan.draws[drawing]
    counts, width = np.minimum(draws, brought), int(draws.max(initial=1))
    tokens, codes = np.full((rows.size, width), 9), np.zeros(rows.size, dtype=np.uint8)
    update_requests(table, Sampled(rows, table.incarnation[rows], draws, tokens, counts, codes))
    for slot in rows[table.length[rows] >= table.limit[rows]].tolist():
        scheduler.finish(slot)
    scheduler.pool.check()


def step(scheduler: Scheduler) -> Plan:
    plan = scheduler.schedule()
    collect(scheduler, plan)
    return plan
