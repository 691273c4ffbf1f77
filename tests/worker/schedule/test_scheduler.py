"""Who runs when."""

from __future__ import annotations

import pytest

from lockstep_worker.sampling.columns import Columns
from support.worlds.scheduling import add, collect, handles, scheduler_of, step
from support.worlds.tables import CPU


def test_an_empty_scheduler_plans_nothing() -> None:
    assert scheduler_of().schedule().is_empty


def test_a_prompt_is_cut_to_the_budget_and_draws_with_its_last_chunk() -> None:
    scheduler = scheduler_of(budget=5)
    add(scheduler, 1, 12)
    plans = [step(scheduler) for _ in range(4)]
    assert [plan.counts.tolist() for plan in plans if not plan.is_empty] == [[5], [5], [2], [1]]
    assert [plan.starts.tolist() for plan in plans if not plan.is_empty] == [[0], [5], [10], [12]]
    assert [plan.draws.tolist() for plan in plans if not plan.is_empty] == [[0], [0], [1], [1]]
    assert [plan.num_decodes for plan in plans if not plan.is_empty] == [0, 0, 0, 1]


def test_a_prompt_whose_last_chunk_is_one_token_reads_it_like_a_decode() -> None:
    scheduler = scheduler_of(budget=5)
    add(scheduler, 1, 6)
    plans = [step(scheduler) for _ in range(2)]
    assert [(plan.num_decodes, plan.counts.tolist(), plan.draws.tolist()) for plan in plans if not plan.is_empty] == [
        (0, [5], [0]),
        (1, [1], [1]),
    ]
    columns = Columns(scheduler.table.num_slots, CPU, vocab_size=10)
    columns.admit(scheduler.table.take_newcomers())
    assert columns.last_token[0] == 1  # what it reads is the prompt's last token


def test_decodes_come_first_then_chunks_then_newcomers_and_the_budget_holds() -> None:
    scheduler = scheduler_of(budget=10)
    add(scheduler, 1, 4)
    assert handles(scheduler, step(scheduler)) == [1]
    add(scheduler, 2, 12)
    assert handles(scheduler, step(scheduler)) == [1, 2]
    add(scheduler, 3, 12)
    plan = step(scheduler)
    assert handles(scheduler, plan) == [1, 2, 3]
    assert (plan.num_decodes, plan.counts.tolist()) == (1, [1, 3, 6])


def test_overlap_keeps_every_row_busy_in_every_step() -> None:
    """A plan is made before the step before it was collected; no step of a running request may be without it."""
    scheduler = scheduler_of()
    add(scheduler, 1, 4, max_tokens=10)
    in_flight, steps = scheduler.schedule(), 1
    while scheduler.num_requests:
        plan = scheduler.schedule()
        collect(scheduler, in_flight)
        in_flight, steps = plan, steps + 1
    assert steps == 10 + 1  # ten forwards for ten tokens, and one more turn to collect the last


def test_a_row_that_will_reach_its_limit_gets_no_forward_too_many() -> None:
    scheduler = scheduler_of()
    add(scheduler, 1, 4, max_tokens=1)
    first = scheduler.schedule()
    assert scheduler.schedule().is_empty
    collect(scheduler, first)
    assert scheduler.num_requests == 0


def test_nobody_overtakes_a_request_that_does_not_fit_yet() -> None:
    scheduler = scheduler_of(blocks=6, budget=32)
    add(scheduler, 1, 8)
    add(scheduler, 2, 20)
    add(scheduler, 3, 1)
    assert handles(scheduler, step(scheduler)) == [1]
    assert handles(scheduler, step(scheduler)) == [1]
    scheduler.cancel(1)
    assert handles(scheduler, step(scheduler)) == [2]


def test_the_next_in_line_goes_on_when_the_one_before_it_is_cancelled_in_the_queue() -> None:
    scheduler = scheduler_of(blocks=6, budget=32)
    add(scheduler, 1, 8)
    add(scheduler, 2, 20)
    add(scheduler, 3, 1)
    step(scheduler)
    assert scheduler.cancel(2)
    assert handles(scheduler, step(scheduler)) == [1, 3]


def test_the_youngest_goes_back_and_comes_again_with_what_it_had() -> None:
    scheduler = scheduler_of(blocks=4, budget=32)
    add(scheduler, 1, 3)
    add(scheduler, 2, 3)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert [sequence.handle for sequence in scheduler.waiting] == [2]
    kept = scheduler.waiting[0].tokens.tolist()
    assert kept[:3] == [2, 2, 2]
    assert set(kept[3:]) == {9}
    seen = []
    while scheduler.num_requests:
        seen.append(handles(scheduler, step(scheduler)))
    assert seen[-1] == [2]
    assert scheduler.table.tokens[0, :11].tolist()[3:] == [9] * 8


def test_a_prompt_that_is_all_in_the_cache_computes_its_last_token_only() -> None:
    scheduler = scheduler_of()
    add(scheduler, 1, [*range(9)])
    while scheduler.num_requests:
        step(scheduler)
    add(scheduler, 2, [*range(9)])
    plan = step(scheduler)
    assert (plan.starts.tolist(), plan.counts.tolist(), plan.draws.tolist()) == ([8], [1], [1])


def test_a_request_is_served_that_needs_every_block() -> None:
    scheduler = scheduler_of(blocks=5, budget=64)
    add(scheduler, 1, 12, max_tokens=8)
    for _ in range(8):
        assert handles(scheduler, step(scheduler)) == [1]
    assert scheduler.num_requests == scheduler.num_preemptions == 0


@pytest.mark.parametrize("state", ["queued", "prefill", "decode", "in flight", "preempted"])
def test_a_cancel_frees_everything_in_every_state_and_only_once(state: str) -> None:
    scheduler = scheduler_of(blocks=4 if state == "preempted" else 40, budget=4)
    if state == "preempted":
        add(scheduler, 7, 3)
    add(scheduler, 1, 10 if state == "prefill" else 3)
    if state in ("prefill", "decode"):
        step(scheduler)
    if state == "in flight":
        scheduler.schedule()
    while state == "preempted" and not scheduler.num_preemptions:
        step(scheduler)
    assert scheduler.cancel(1)
    assert not scheduler.cancel(1)
    while scheduler.num_requests:
        step(scheduler)
    scheduler.pool.check()
    assert scheduler.pool.num_free == scheduler.pool.num_blocks
    assert scheduler.table.num_free == scheduler.table.num_slots


def test_a_cancel_of_an_unknown_handle_is_ignored() -> None:
    assert not scheduler_of().cancel(5)


def test_a_token_that_the_host_has_not_seen_does_not_enter_the_prefix_cache() -> None:
    scheduler = scheduler_of()
    add(scheduler, 1, 3)
    scheduler.schedule()
    scheduler.schedule()  # its keys and values fill the first block, but nobody knows yet which token it is
    assert scheduler.table.computed[0] == 4
    scheduler.cancel(1)
    add(scheduler, 2, [1, 1, 1, 0, 5])
    plan = scheduler.schedule()
    assert plan.starts.tolist() == [0]
