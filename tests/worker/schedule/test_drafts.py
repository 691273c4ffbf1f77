"""Rows that bring several tokens a run: a proposal changes how many runs a request takes, and no token of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.wire.messages import FinishCode, NewRequest
from lockstep_worker.wire.params import SamplingParams, list_needs
from support.data.tiny_models import save_tiny_model
from support.worlds.fuzz import random_requests
from support.worlds.local_group import LocalGroup
from support.worlds.scheduling import BLOCK, add, collect, scheduler_of

DRAFTS = 3
Propose = Callable[[Scheduler], None]


def drafted(**options: int) -> Scheduler:
    """A scheduler with one request that has decoded its first token."""
    scheduler = scheduler_of(drafts=DRAFTS, **options)
    add(scheduler, 1, 5, max_tokens=20)
    collect(scheduler, scheduler.schedule())
    return scheduler


# --- the plan -------------------------------------------------------------------------------------------------------
def test_a_row_with_drafts_computes_them_all_and_may_bring_one_token_more() -> None:
    scheduler = drafted()
    scheduler.table.propose(0, [9, 9])
    plan = scheduler.schedule()
    assert (plan.starts.tolist(), plan.counts.tolist(), plan.draws.tolist(), plan.num_decodes) == ([5], [3], [3], 1)
    assert scheduler.table.in_flight[0] == 3


@pytest.mark.parametrize("brought", [1, 2, 3])
def test_after_the_update_the_next_run_goes_on_behind_what_was_kept(brought: int) -> None:
    scheduler = drafted()
    scheduler.table.propose(0, [9, 9])
    collect(scheduler, scheduler.schedule(), brought)
    table = scheduler.table
    assert (table.length[0], table.in_flight[0], table.computed[0]) == (6 + brought, 0, 5 + brought)
    plan = scheduler.schedule()
    assert (plan.starts.tolist(), plan.counts.tolist()) == ([5 + brought], [1])


def test_a_row_whose_drafts_are_in_flight_waits_for_them() -> None:
    scheduler = drafted()
    scheduler.table.propose(0, [9])
    first = scheduler.schedule()
    assert scheduler.schedule().is_empty
    collect(scheduler, first, 1)
    assert scheduler.schedule().counts.tolist() == [1]


def test_the_blocks_for_all_drafts_are_granted_at_once() -> None:
    scheduler = drafted()
    before = int(scheduler.table.num_blocks[0])
    assert before * BLOCK == 8
    scheduler.table.propose(0, [9, 9, 9])
    assert scheduler.schedule().counts.tolist() == [4]  # positions 5 to 8
    assert scheduler.table.num_blocks[0] == before + 1


def test_no_more_is_proposed_than_the_limit_leaves_room_for() -> None:
    scheduler = scheduler_of(drafts=DRAFTS)
    add(scheduler, 1, 5, max_tokens=3)
    collect(scheduler, scheduler.schedule())
    scheduler.table.propose(0, [9, 9, 9])  # two tokens are left, and one is drawn in any case
    assert scheduler.schedule().counts.tolist() == [2]


def test_when_the_budget_is_short_drafts_go_before_rows() -> None:
    scheduler = scheduler_of(drafts=DRAFTS, budget=6)
    for handle in (1, 2, 3):
        add(scheduler, handle, 2, max_tokens=20)
    collect(scheduler, scheduler.schedule())
    for slot in range(3):
        scheduler.table.propose(slot, [9, 9, 9])
    assert scheduler.schedule().counts.tolist() == [4, 1, 1]


def test_a_proposal_for_a_row_that_must_see_each_token_is_a_mistake() -> None:
    scheduler = scheduler_of(drafts=DRAFTS)
    add(scheduler, 1, 5)
    scheduler.schedule()
    with pytest.raises(AssertionError):
        scheduler.table.propose(0, [9])  # its first token is in flight


# --- the whole loop -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


def drafting(group: LocalGroup, propose: Propose) -> list[Plan]:
    """Have a drafter look at the table before each plan; returns the plans as they come."""
    plans: list[Plan] = []
    schedule = group.scheduler.schedule

    def propose_first() -> Plan:
        propose(group.scheduler)
        plans.append(schedule())
        return plans[-1]

    group.scheduler.schedule = propose_first  # type: ignore[method-assign]
    return plans


def guess(rng: random.Random, known: dict[int, list[int]]) -> Propose:
    """A drafter that knows what the plain run drew, and is wrong now and then."""

    def propose(scheduler: Scheduler) -> None:
        table = scheduler.table
        for sequence in [one for one in table.sequences if one is not None]:
            slot = sequence.slot
            if table.in_flight[slot] or table.ineligible[slot] or "penalties" in list_needs(sequence.params):
                continue
            done = int(table.length[slot]) - sequence.prompt_length
            tokens = known[sequence.handle][done : done + rng.randrange(DRAFTS + 1)]
            table.propose(slot, [token if rng.random() < 0.8 else (token + 1) % 50 for token in tokens])

    return propose


ROOMS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "preempting": {"num_blocks": 12, "block_size": 8, "max_batch_size": 8, "max_num_tokens": 32},
    "tiny budget": {"max_batch_size": 4, "max_num_tokens": 6, "block_size": 4},
}


@pytest.mark.parametrize("overlap", [False, True], ids=["no overlap", "overlap"])
@pytest.mark.parametrize("room", ROOMS)
def test_tokens_and_ends_are_those_of_the_plain_run(model: Model, room: str, overlap: bool) -> None:
    requests = random_requests(random.Random(8), 40, model.vocab_size, 40)
    plain = LocalGroup(model, overlap=overlap).run([[one] for one in requests])
    group = LocalGroup(model, overlap=overlap, max_drafts=DRAFTS, **ROOMS[room])
    plans = drafting(group, guess(random.Random(3), plain.tokens))
    found = group.run([[one] for one in requests])
    assert found.tokens == plain.tokens
    assert found.codes == plain.codes
    assert found.logprobs.keys() == plain.logprobs.keys()
    if not overlap:  # with overlap the host hardly ever knows the newest token in time
        assert max(int(plan.draws.max(initial=0)) for plan in plans) == DRAFTS + 1
    if room == "preempting":
        assert group.scheduler.num_preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_right_drafts_take_a_fraction_of_the_runs_at_any_temperature(model: Model, temperature: float) -> None:
    request = NewRequest(1, [5, 6, 7, 8], SamplingParams(max_tokens=33, temperature=temperature, seed=4))
    plain = LocalGroup(model, overlap=False).run([[request]])
    group = LocalGroup(model, overlap=False, max_drafts=DRAFTS)

    def propose(scheduler: Scheduler) -> None:
        if scheduler.num_running and not scheduler.table.in_flight[0]:
            done = int(scheduler.table.length[0]) - 4
            scheduler.table.propose(0, plain.tokens[1][done:])

    plans = drafting(group, propose)
    assert group.run([[request]]).tokens == plain.tokens
    assert sum(not plan.is_empty for plan in plans) == 1 + 32 / (DRAFTS + 1)


def test_what_comes_behind_an_end_within_one_run_is_dropped(model: Model) -> None:
    prompt = [5, 6, 7, 8]
    plain = LocalGroup(model).generate([prompt], SamplingParams(max_tokens=12, temperature=0.0))[0]
    end = plain[2]
    group = LocalGroup(model, overlap=False, max_drafts=DRAFTS)

    def propose(scheduler: Scheduler) -> None:
        if scheduler.num_running and scheduler.table.length[0] == len(prompt) + 1:
            scheduler.table.propose(0, plain[1:4])

    drafting(group, propose)
    record = group.run([[NewRequest(1, prompt, SamplingParams(max_tokens=12, temperature=0.0, end_ids=(end,)))]])
    assert record.tokens[1] == plain[: plain.index(end) + 1]
    assert record.codes[1] == FinishCode.END_ID
    assert np.array_equal(group.scheduler.table.in_flight, np.zeros(64))
