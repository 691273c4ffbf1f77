"""The batched update, the per-request update and the mix of both do the same, field by field, on random batches."""

from __future__ import annotations

import copy
import random

import pytest

from lockstep_worker.schedule.sampled import Sampled
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.schedule.update import live_rows, update_batched, update_per_request, update_requests
from support.worlds.tables import admit_newcomer, draw_step, logprob_results, random_table, results, snapshot

NUM_SEEDS = 10
TABLES_PER_SEED = 35
STEPS_PER_TABLE = 30
"""The product of the three is more than ten thousand batches."""


def release_some(rng: random.Random, table: SlotTable) -> None:
    """End, cancel or preempt some rows after their run began; some of their slots go to newcomers at once."""
    used = [slot for slot, sequence in enumerate(table.sequences) if sequence is not None]
    for slot in rng.sample(used, min(len(used), rng.choice([0, 0, 1, 2]))):
        sequence = table.release(slot)
        if rng.random() < 0.5:
            table.in_flight[table.admit(sequence)] = 1


def go_on(rng: random.Random, table: SlotTable, ended: list[int], handle: int) -> None:
    """Do what the loop does after an update, so that the table goes through many owners and lengths."""
    for slot in ended:
        table.release(slot)
    if table.num_free and rng.random() < 0.5:
        admit_newcomer(rng, table, handle)
    table.in_flight[:] = rng.choice([1, 2])


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_all_paths_agree_field_by_field(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(TABLES_PER_SEED):
        table = random_table(rng, num_slots=rng.choice([1, 4, 8]))
        for step in range(STEPS_PER_TABLE):
            drawn = draw_step(rng, table, most=rng.choice([1, 1, 3]))
            release_some(rng, table)
            ended = check_all_paths(table, live_rows(table, drawn))
            go_on(rng, table, ended, handle=100 + step)


def check_all_paths(table: SlotTable, live: Sampled) -> list[int]:
    """Update three twins of the table, the table itself by the batched path; return the rows that ended."""
    per_request, mixed = copy_host(table), copy_host(table)
    slow = update_per_request(per_request, live)
    expected, expected_logprobs = results(slow), logprob_results(slow)
    assert results(update_batched(table, live)) == expected
    found, num_batched = update_requests(mixed, live)
    assert results(found) == expected
    assert logprob_results(found) == expected_logprobs
    asking = {row for row in live.rows.tolist() if table.sequence(row).params.logprobs >= 0}
    assert expected_logprobs.keys() == asking
    for row, (_, ids, _) in expected_logprobs.items():
        assert len(ids) == table.sequence(row).params.logprobs
    assert snapshot(table) == snapshot(per_request) == snapshot(mixed)
    eligible = [row for row in live.rows.tolist() if not table.sequence(row).params.stop_token_ids]
    assert sorted(found.rows[:num_batched].tolist()) == sorted(set(eligible) - asking)
    return [row for row, (_, _, code) in expected.items() if code]


def test_a_row_whose_owner_changed_after_the_run_began_is_dropped() -> None:
    rng = random.Random(3)
    dropped = kept = 0
    for _ in range(500):
        table = random_table(rng, num_slots=8)
        drawn = draw_step(rng, table)
        owners, incarnations = list(table.sequences), table.incarnation.copy()
        release_some(rng, table)
        stayed = [
            row
            for row in drawn.rows.tolist()
            if table.sequences[row] is owners[row] and table.incarnation[row] == incarnations[row]
        ]
        live = live_rows(table, drawn)
        assert live.rows.tolist() == stayed
        assert len(live.tokens) == live.codes.size == live.incarnations.size == live.rows.size
        kept, dropped = kept + live.rows.size, dropped + drawn.rows.size - live.rows.size
    assert kept > 100
    assert dropped > 50


def test_one_ineligible_request_does_not_cost_the_others_the_batched_path() -> None:
    rng = random.Random(5)
    while True:
        table = random_table(rng, num_slots=8)
        drawn = draw_step(rng, table)
        if table.ineligible[drawn.rows].sum() == 1 and drawn.rows.size > 4:
            break
    _, num_batched = update_requests(table, drawn)
    assert num_batched == drawn.rows.size - 1


def test_who_keeps_time_is_told_of_each_path_that_has_rows_and_of_no_other() -> None:
    rng, told = random.Random(11), set()
    for _ in range(300):
        table = random_table(rng, num_slots=4)
        live = draw_step(rng, table)
        slow = table.ineligible[live.rows]
        marks: list[str] = []
        update_requests(table, live, marks.append)
        assert (
            marks
            == {
                (False, False): [],
                (True, False): ["batched"],
                (False, True): ["per_request", "per_request"],
                (True, True): ["per_request", "batched", "per_request"],
            }[bool((~slow).any()), bool(slow.any())]
        )
        told.add(tuple(marks))
    assert len(told) == 4


def test_an_update_of_no_row_changes_nothing() -> None:
    table = random_table(random.Random(1), num_slots=4)
    before = snapshot(table)
    drawn = draw_step(random.Random(2), table)
    nothing = drawn.take(drawn.rows < 0)
    for update in (update_batched, update_per_request):
        assert update(table, nothing).rows.size == 0
    assert snapshot(table) == before


def copy_host(table: SlotTable) -> SlotTable:
    """The same table once more; the device's half, which no update touches, is shared."""
    twin = copy.copy(table)
    for name in ("tokens", "length", "in_flight", "computed", "limit", "incarnation", "handle", "num_blocks"):
        setattr(twin, name, getattr(table, name).copy())
    return twin
