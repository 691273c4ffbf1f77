"""Rows that bring several tokens a run: a proposal changes how many runs a request takes, and no token of it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lockstep_worker.executor.exchange import RankState
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import Pending, Row, SingleComm
from lockstep_worker.runner.runner import Run, Runner
from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.messages import FinishCode, NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.drafter import Drafter, mostly_draftable
from support.worlds.fuzz import Inspector, Traffic, random_requests
from support.worlds.local_group import LocalGroup, Record
from support.worlds.scheduling import BLOCK, CONTEXT, add, collect, handles, scheduler_of

DRAFTS = 3


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


def test_no_row_is_sent_back_for_a_draft() -> None:
    scheduler = scheduler_of(drafts=DRAFTS, blocks=4)
    for handle in (1, 2):
        add(scheduler, handle, 6, max_tokens=20)
    collect(scheduler, scheduler.schedule())
    for slot in range(2):
        scheduler.table.propose(slot, [9, 9, 9])
    plan = scheduler.schedule()  # each has two blocks of four, no block is free, and position 6 is next
    assert (plan.counts.tolist(), scheduler.num_preemptions) == ([2, 2], 0)


def test_the_last_free_blocks_go_to_rows_before_drafts() -> None:
    scheduler = scheduler_of(drafts=DRAFTS, blocks=5)
    add(scheduler, 1, 6, max_tokens=20)
    add(scheduler, 2, 7, max_tokens=20)
    collect(scheduler, scheduler.schedule())
    collect(scheduler, scheduler.schedule())  # the second one stands before its third block
    for slot in range(2):
        scheduler.table.propose(slot, [9, 9])
    assert (scheduler.schedule().counts.tolist(), scheduler.num_preemptions) == ([1, 3], 0)


def test_a_drafting_row_waits_for_its_tokens_with_overlap_too() -> None:
    scheduler = scheduler_of(drafts=DRAFTS)
    for handle in (1, 2):
        add(scheduler, handle, 5, max_tokens=20)
    first = scheduler.schedule()
    scheduler.table.drafting[1] = True
    assert handles(scheduler, scheduler.schedule()) == [1]  # the tokens of the first run are not here yet
    collect(scheduler, first)
    assert handles(scheduler, scheduler.schedule()) == [1, 2]


@pytest.mark.parametrize(
    "options",
    [{"frequency_penalty": 0.5}, {"logprobs": 0}, {"stop_token_ids": (3,)}],
    ids=lambda options: next(iter(options)),
)
def test_a_proposal_for_a_row_that_must_see_each_token_is_a_mistake(options: dict[str, Any]) -> None:
    scheduler = scheduler_of(drafts=DRAFTS)
    request = NewRequest(1, [1, 2, 3], SamplingParams(max_tokens=9, **options))
    scheduler.add(Sequence.of(request, CONTEXT))
    collect(scheduler, scheduler.schedule())
    with pytest.raises(AssertionError, match="must see each token"):
        scheduler.table.propose(0, [9])


def test_a_proposal_before_the_newest_token_is_known_is_a_mistake() -> None:
    scheduler = scheduler_of(drafts=DRAFTS)
    add(scheduler, 1, 5)
    scheduler.schedule()
    with pytest.raises(AssertionError, match="must know a row's tokens"):
        scheduler.table.propose(0, [9])


# --- the whole loop -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


ROOMS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "preempting": {"num_blocks": 12, "block_size": 8, "max_batch_size": 8, "max_num_tokens": 32},
    "tiny budget": {"max_batch_size": 4, "max_num_tokens": 6, "block_size": 4},
}


@pytest.mark.parametrize("overlap", [False, True], ids=["no overlap", "overlap"])
@pytest.mark.parametrize("room", ROOMS)
def test_tokens_and_ends_are_those_of_the_plain_run_whatever_is_cancelled(
    model: Model, room: str, overlap: bool
) -> None:
    rng = random.Random(22)  # few seeds have somebody leave the tiny budget with drafts in flight
    requests = mostly_draftable(rng, random_requests(rng, 70, model.vocab_size, 40))
    plain = LocalGroup(model).run([requests])
    group = LocalGroup(model, overlap=overlap, max_drafts=DRAFTS, **ROOMS[room])
    drafter = Drafter(rng, plain.tokens).attach(group.scheduler)
    traffic = Traffic(rng, list(requests), cancel_rate=0.15)
    found = group.follow(traffic, Record(), Inspector(group.scheduler, group.max_num_tokens))
    assert found.codes.keys() == plain.codes.keys()
    for handle, tokens in plain.tokens.items():
        if found.codes[handle] == FinishCode.CANCELLED:
            assert found.tokens.get(handle, []) == tokens[: len(found.tokens.get(handle, []))]
        else:
            assert (found.tokens[handle], found.codes[handle]) == (tokens, plain.codes[handle])
    assert drafter.drafted_rows > 20
    # Without overlap nothing is in flight when somebody leaves; with room for all hardly anybody leaves.
    assert (drafter.left_in_flight > 0) == (overlap and room != "roomy")
    assert (group.scheduler.num_preemptions > 0) == (room == "preempting")


class Eager(Drafter):
    """Proposes all that it can."""

    def propose(self, scheduler: Scheduler) -> None:
        table = scheduler.table
        if scheduler.num_running and not table.in_flight[0] and table.length[0] - table.computed[0] == 1:
            done = int(table.length[0]) - table.sequence(0).prompt_length
            table.propose(0, self.known[1][done:])


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_right_drafts_take_a_fraction_of_the_runs_at_any_temperature(model: Model, temperature: float) -> None:
    request = NewRequest(1, [5, 6, 7, 8], SamplingParams(max_tokens=33, temperature=temperature, seed=4))
    plain = LocalGroup(model, overlap=False).run([[request]])
    group = LocalGroup(model, overlap=False, max_drafts=DRAFTS)

    drafter = Eager(random.Random(1), plain.tokens, right=1.0).attach(group.scheduler)
    assert group.run([[request]]).tokens == plain.tokens
    assert sum(not plan.is_empty for plan in drafter.plans) == 1 + 32 / (DRAFTS + 1)


def test_what_comes_behind_an_end_within_one_run_is_dropped(model: Model) -> None:
    prompt = [5, 6, 7, 8]
    plain = LocalGroup(model).generate([prompt], SamplingParams(max_tokens=12, temperature=0.0))[0]
    end = plain[2]
    group = LocalGroup(model, overlap=False, max_drafts=DRAFTS)

    Eager(random.Random(1), {1: plain}).attach(group.scheduler)
    record = group.run([[NewRequest(1, prompt, SamplingParams(max_tokens=12, temperature=0.0, end_ids=(end,)))]])
    assert record.tokens[1] == plain[: plain.index(end) + 1]
    assert record.codes[1] == FinishCode.END_ID
    assert np.array_equal(group.scheduler.table.in_flight, np.zeros(64))


class Listening(SingleComm):
    """Keeps what the only rank tells."""

    def __init__(self) -> None:
        self.digests: list[int] = []

    def start_allgather(self, row: Row) -> Pending:
        self.digests.append(RankState(*row.tolist()).digest)
        return super().start_allgather(row)


def test_how_many_drafts_a_row_kept_is_in_the_next_digest(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens drawn, and another number of them kept: ranks of one replica must not go on like that."""
    prompt = [5, 6, 7, 8]
    plain = LocalGroup(model).generate([prompt], SamplingParams(max_tokens=12, temperature=0.0))[0]
    collect_run, told = Runner.collect, []

    def collect_less(runner: Runner, run: Run) -> Sampled:
        sampled = collect_run(runner, run)
        return sampled if sampled.is_single else replace(sampled, counts=sampled.counts - 1)

    for collect_as in (collect_run, collect_less):
        monkeypatch.setattr(Runner, "collect", collect_as)
        comm = Listening()
        group = LocalGroup(model, comm=comm, overlap=False, max_drafts=DRAFTS)
        drafter = Eager(random.Random(1), {1: plain}).attach(group.scheduler)
        group.run([[NewRequest(1, prompt, SamplingParams(max_tokens=12, temperature=0.0))]])
        first = next(index for index, plan in enumerate(drafter.plans) if plan.max_draws > 1)
        told.append(comm.digests)
    # Row n + 1 tells the plan of step n, row n + 2 also what came of it; the park's exchange comes before all.
    assert told[0][: first + 2] == told[1][: first + 2]
    assert told[0][first + 2] != told[1][first + 2]
