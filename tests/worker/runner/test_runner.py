"""A plan becomes a forward: what is packed, where it lies, and that a run may have no rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.topology import ALONE, Topology
from lockstep_worker.runner.blocks import DeviceBlocks
from lockstep_worker.runner.pack import Packer
from lockstep_worker.runner.runner import Runner
from lockstep_worker.schedule.plan import EMPTY_PLAN, Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model

BLOCK = 4
TOGETHER = Topology.of(0, data=2, expert=2)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model(request.param, tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


def scheduler_of(model: Model) -> Scheduler:
    model.create_cache(32, BLOCK)
    table = SlotTable(4, model.max_model_len, -(-model.max_model_len // BLOCK), max_drafts=2)
    return Scheduler(table, BlockPool(32, BLOCK), 64)


def add(scheduler: Scheduler, handle: int, prompt: list[int]) -> None:
    scheduler.add(Sequence.of(NewRequest(handle, prompt, SamplingParams(max_tokens=5, temperature=0.0)), 64))


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_only_who_shares_experts_runs_without_rows(model: Model) -> None:
    scheduler = scheduler_of(model)
    runners = [Runner(model, scheduler.table, BLOCK, 64, topology) for topology in (ALONE, TOGETHER)]
    assert [runner.takes_part(EMPTY_PLAN) for runner in runners] == [False, True]
    add(scheduler, 1, [1, 2, 3])
    plan = scheduler.schedule()
    assert all(runner.takes_part(plan) for runner in runners)


def test_a_run_without_rows_passes_every_layer_and_brings_nothing(model: Model) -> None:
    scheduler = scheduler_of(model)
    runner = Runner(model, scheduler.table, BLOCK, 64, TOGETHER)
    seen: list[torch.Size] = []
    hooks = [
        module.register_forward_hook(lambda module, args, output: seen.append(output.shape))
        for name, module in model._network.named_modules()
        if name.endswith("down_proj")
    ]
    sampled = runner.collect(runner.run(EMPTY_PLAN))
    for hook in hooks:
        hook.remove()
    assert len(seen) == model.num_layers
    assert {tuple(shape[:2]) for shape in seen} == {(1, 1)}
    assert (sampled.rows.size, sampled.tokens.size, sampled.logprobs) == (0, 0, None)


def test_a_run_without_rows_changes_no_token_of_its_neighbours(model: Model) -> None:
    found = []
    for interleave in (False, True):
        scheduler = scheduler_of(model)
        runner = Runner(model, scheduler.table, BLOCK, 64, TOGETHER)
        add(scheduler, 1, [5, 6, 7, 8, 9])
        tokens = []
        for _ in range(3):
            if interleave:
                runner.run(EMPTY_PLAN)
            sampled = runner.collect(runner.run(scheduler.schedule()))
            tokens.append(int(sampled.tokens[0, 0]))
            scheduler.table.length[sampled.rows] += 1
            scheduler.table.in_flight[sampled.rows] -= 1
        found.append(tokens)
    assert found[0] == found[1]


def test_rows_are_packed_as_the_plan_orders_them() -> None:
    table = SlotTable(4, 32, 8, max_drafts=2)
    for slot, blocks in ((0, [5, 6]), (1, [7, 3]), (2, [1])):
        table.admit(Sequence(slot + 1, SamplingParams(max_tokens=30), 2, 32, np.zeros(2, dtype=np.int32)))
        table.set_blocks(slot, blocks)
        table.tokens[slot] = np.arange(32) + 100 * slot
    table.drafts[1] = [71, 72]
    newest = torch.tensor([10, 11, 12, 13])
    on_device = DeviceBlocks(table, 9, torch.device("cpu"))
    on_device.take_grants()
    packer = Packer(table, BLOCK, 64, spare_block=9, blocks=on_device, last_token=newest)
    plan = Plan(
        rows=ints(0, 1, 2), starts=ints(5, 4, 0), counts=ints(1, 3, 3), draws=ints(1, 3, 0), num_decodes=2, max_draws=3
    )
    packed = packer.pack(plan)
    assert (packed.rows.tolist(), packed.draws.tolist()) == ([0, 1], [1, 3])
    assert packed.rows_on_device.tolist() == [0, 1]
    batch = packed.batch
    assert batch.input_ids.tolist() == [10, 11, 71, 72, 200, 201, 202]
    assert batch.positions.tolist() == [5, 4, 5, 6, 0, 1, 2]
    assert batch.kv_cells.tolist() == [6 * 4 + 1, 3 * 4, 3 * 4 + 1, 3 * 4 + 2, 4, 5, 6]
    assert batch.host.query_start.tolist() == [0, 1, 4, 7]
    assert batch.host.context_lens.tolist() == [6, 7, 3]
    assert batch.block_tables.tolist() == [[5, 6], [7, 3], [1, 9]]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3]
