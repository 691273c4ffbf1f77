"""Rows that cross a block's border together: granted at once, committed in shares, and as if it went row by row."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.runner.blocks import DeviceBlocks
from lockstep_worker.schedule.grants import Grants
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup
from support.worlds.scheduling import BLOCK, CONTEXT, add, scheduler_of, step
from support.worlds.tables import CPU

SLOTS, WIDTH, BLOCKS = 9, 6, 40
Give = Callable[[Grants, list[int]], None]


def give_at_once(grants: Grants, slots: list[int]) -> None:
    grants.give_next(np.array(slots))


def give_one_by_one(grants: Grants, slots: list[int]) -> None:
    for slot in slots:
        grants.give(slot, 1)


def granted(give: Give, seed: int) -> tuple[SlotTable, BlockPool, DeviceBlocks]:
    """A table of rows with none to three blocks, after two grants to some of them, the second from evicted blocks."""
    rng = random.Random(seed)
    table, pool = SlotTable(SLOTS, WIDTH * BLOCK, WIDTH), BlockPool(BLOCKS, BLOCK)
    pool.commit(former := pool.allocate(12), list(range(12 * BLOCK)), 12 * BLOCK)
    on_device = DeviceBlocks(table, BLOCKS, CPU)
    grants = Grants(table, pool)
    for handle in range(1, SLOTS + 1):
        slot = table.admit(Sequence.of(NewRequest(handle, [handle], SamplingParams(max_tokens=9)), WIDTH * BLOCK))
        table.set_blocks(slot, pool.allocate(rng.randrange(4)))
    pool.release(former)
    on_device.take_grants()
    for _ in range(2):
        pool.allocate(max(len(pool._free) - 3, 0))  # the grant takes what is free, then what is evictable
        give(grants, rng.sample(range(SLOTS), 6))
        on_device.take_grants()
        pool.check()
    return table, pool, on_device


@pytest.mark.parametrize("seed", range(5))
def test_blocks_granted_at_once_are_those_granted_row_by_row(seed: int) -> None:
    at_once, pool, on_device = granted(give_at_once, seed)
    one_by_one, twin, other_device = granted(give_one_by_one, seed)
    assert vars(pool) == vars(twin)
    assert np.array_equal(at_once.block_table, one_by_one.block_table)
    assert np.array_equal(at_once.num_blocks, one_by_one.num_blocks)
    for slot in range(SLOTS):
        blocks = at_once.sequence(slot).blocks
        assert blocks == one_by_one.sequence(slot).blocks
        assert at_once.block_table[slot, : at_once.num_blocks[slot]].tolist() == blocks
        assert on_device.rows[slot, : len(blocks)].tolist() == blocks
    assert torch.equal(on_device.rows, other_device.rows)


def start_together(count: int, max_tokens: int) -> Scheduler:
    """Rows of which all have their first block full after the same step, and whose first prompt token is their own."""
    scheduler = scheduler_of(slots=count, blocks=count * CONTEXT // BLOCK, budget=count * 4)
    for handle in range(1, count + 1):
        add(scheduler, handle, [handle, 5, 5], max_tokens)
    return scheduler


def known_blocks(scheduler: Scheduler) -> int:
    return len(scheduler.pool._owners)


@pytest.mark.parametrize("count", [1, 6, 64])  # of which a step's share is committed one by one, or at once
def test_no_step_commits_more_than_its_share_and_each_row_is_done_before_its_next_block(count: int) -> None:
    scheduler = start_together(count, 30)
    step(scheduler)
    for _ in range(5):
        found = []
        for _ in range(BLOCK):
            before = known_blocks(scheduler)
            step(scheduler)
            found.append(known_blocks(scheduler) - before)
        assert max(found) <= -(-count // BLOCK)
    step(scheduler)
    assert known_blocks(scheduler) == 5 * count  # the fifth was full four steps ago


@pytest.mark.parametrize("count", [3, 64])
def test_what_running_requests_filled_is_found_at_the_latest_when_they_fill_the_next_block(count: int) -> None:
    scheduler = start_together(count, 30)
    for steps in range(1, 24):
        step(scheduler)
        full_before = (3 + steps - 1) // BLOCK - 1
        for handle in range(1, count + 1):
            tokens = [handle, 5, 5] + [9] * 40
            assert scheduler.pool.probe(tokens) >= full_before * BLOCK


@pytest.mark.parametrize("end", ["finish", "cancel", "preempt"])
def test_a_row_that_leaves_while_it_waits_to_be_committed_loses_nothing(end: str) -> None:
    scheduler = start_together(64, 30)
    for _ in range(3):
        step(scheduler)
    waiting = list(scheduler._grants._uncommitted)
    assert len(waiting) > 32
    for slot in waiting[:3]:
        handle = int(scheduler.table.handle[slot])
        tokens = [handle, 5, 5, 9, 0]
        assert scheduler.pool.probe(tokens) == 0
        if end == "finish":
            scheduler.finish(slot)
        elif end == "cancel":
            scheduler.cancel(handle)
        else:
            scheduler._preempt(slot)
        assert scheduler.pool.probe(tokens) == BLOCK
        assert slot not in scheduler._grants._uncommitted
        scheduler.pool.check()
    while scheduler.num_requests:
        step(scheduler)
    assert not scheduler._grants._uncommitted
    for handle in range(1, 65):
        if end == "preempt" or handle not in {slot + 1 for slot in waiting[:3]}:
            assert scheduler.pool.probe([handle, 5, 5] + [9] * 30) == (3 + 30 - 1) // BLOCK * BLOCK


def test_a_row_with_more_than_one_full_block_to_commit_gets_all_of_them() -> None:
    """Drafts fill blocks faster than a step's share of the queue is planned for."""
    table, pool = SlotTable(16, CONTEXT, CONTEXT // BLOCK, max_drafts=2), BlockPool(100, BLOCK)
    grants = Grants(table, pool)
    others = pool.allocate(2)
    pool.commit(others, [99] * BLOCK, BLOCK)
    table.block_table[:, -2:] = others  # of a former owner of the slot
    for handle in range(1, 17):
        slot = table.admit(Sequence.of(NewRequest(handle, [handle] * 14, SamplingParams(max_tokens=9)), CONTEXT))
        table.computed[slot] = 14 if handle % 2 else 2
        grants.give(slot, 4)
    grants.commit_some(16 * BLOCK)
    assert not grants._uncommitted
    for handle in range(1, 17):
        assert pool.probe([handle] * 14) == (12 if handle % 2 else 0)
    assert pool._digests[others[1]] is None, "a row without a full block committed somebody else's"


def test_without_a_prefix_cache_nothing_waits_to_be_committed() -> None:
    table, pool = SlotTable(4, CONTEXT, CONTEXT // BLOCK), BlockPool(40, BLOCK, prefix_cache=False)
    scheduler = Scheduler(table, pool, 16)
    for handle in range(1, 5):
        add(scheduler, handle, 3)
    while scheduler.num_requests:
        step(scheduler)
        assert not scheduler._grants._uncommitted
    assert not pool._owners


def test_many_rows_that_step_together_draw_what_each_draws_alone_and_are_found_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    model: Model = load_model(str(path), device=torch.device("cpu"), dtype="float32")
    prompts = [[1 + index, 7, 9] for index in range(40)]
    params = SamplingParams(max_tokens=12, temperature=0.0)
    plain = LocalGroup(model, prefix_cache=False, block_size=64).generate(prompts, params)
    group = LocalGroup(model, max_batch_size=40, block_size=2)
    assert group.generate(prompts, params) == plain
    again = [prompt + tokens for prompt, tokens in zip(prompts, plain, strict=True)]
    short = SamplingParams(max_tokens=4, temperature=0.0)
    requests = [NewRequest(100 + index, prompt, short) for index, prompt in enumerate(again)]
    record = group.run([requests])
    assert set(record.cached.values()) == {14}
    assert len(record.cached) == 40
    fresh = LocalGroup(model, prefix_cache=False, block_size=64).generate(again, short)
    assert [record.tokens[100 + index] for index in range(40)] == fresh
