"""Lower priority numbers run first, and nothing else about the order changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_worker.errors import RequestError
from lockstep_worker.executor.intake import Limits, check_request
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.worlds.scheduling import add, handles, scheduler_of, step


def order(scheduler: Scheduler) -> list[int]:
    """Handles as they first run, one at a time."""
    seen: list[int] = []
    while scheduler.num_requests:
        seen += [handle for handle in handles(scheduler, step(scheduler)) if handle not in seen]
    return seen


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), max_size=12), st.lists(st.integers(1, 12), max_size=4))
def test_who_runs_follows_priority_then_arrival(priorities: list[int], cancelled: list[int]) -> None:
    scheduler = scheduler_of(slots=1, budget=1)
    wanted = [(priority, handle) for handle, priority in enumerate(priorities, 1)]
    for priority, handle in wanted:
        add(scheduler, handle, 2, 1, priority=priority)
    for handle in cancelled:
        scheduler.cancel(handle)
    assert order(scheduler) == [handle for _, handle in sorted(wanted) if handle not in cancelled]


def test_a_running_request_does_not_make_room_for_a_newcomer() -> None:
    scheduler = scheduler_of(slots=1)
    add(scheduler, 1, 2, 3, priority=5)
    step(scheduler)
    add(scheduler, 2, 2, 1, priority=-5)
    assert order(scheduler) == [1, 2]
    assert scheduler.num_preemptions == 0


def test_a_newcomer_before_a_head_that_does_not_fit_is_looked_at() -> None:
    scheduler = scheduler_of(blocks=6, budget=32)
    add(scheduler, 1, 8)
    add(scheduler, 2, 20)
    assert handles(scheduler, step(scheduler)) == [1]
    assert handles(scheduler, step(scheduler)) == [1]
    add(scheduler, 3, 1, priority=-1)
    assert handles(scheduler, step(scheduler)) == [1, 3]


@pytest.mark.parametrize(("priorities", "victim"), [([0, 0], 2), ([1, 0], 1), ([0, 1], 2), ([-1, -1], 2)], ids=str)
def test_the_lowest_priority_goes_back_first_and_then_the_youngest(priorities: list[int], victim: int) -> None:
    scheduler = scheduler_of(blocks=4, budget=32)
    for handle, priority in enumerate(priorities, 1):
        add(scheduler, handle, 3, priority=priority)
    while not scheduler.num_preemptions:
        step(scheduler)
    assert [sequence.handle for sequence in scheduler.waiting] == [victim]


def test_a_preempted_request_comes_back_before_those_that_came_after_it() -> None:
    scheduler = scheduler_of(slots=2, blocks=4, budget=32)
    for handle in (1, 2, 3):
        add(scheduler, handle, 3)
    while not scheduler.num_preemptions:
        step(scheduler)
    add(scheduler, 4, 3, priority=-1)
    assert [sequence.handle for sequence in scheduler.waiting] == [4, 2, 3]


@pytest.mark.parametrize("priority", [-(2**31) - 1, 2**31])
def test_rank_0_refuses_a_priority_beyond_int32(priority: int) -> None:
    request = NewRequest(1, [1], SamplingParams(max_tokens=1), priority)
    with pytest.raises(RequestError, match="priority is"):
        check_request(request, Limits(10, 10, 10, 10))
