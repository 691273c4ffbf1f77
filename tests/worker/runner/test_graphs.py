"""Decodes as captured programs, without a device: a replay is another call on the same memory, and brings the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.runner.capture import CannotCaptureError, Program
from lockstep_worker.runner.graphs import BUCKETS, choose_buckets
from lockstep_worker.runner.runner import Runner
from lockstep_worker.schedule.scheduler import Scheduler
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.messages import FinishCode, NewRequest
from lockstep_worker.wire.params import NEEDS, Needs, SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.fuzz import run_fuzz
from support.worlds.local_group import LocalGroup, run_again

GROUPS: dict[str, dict[str, Any]] = {
    "roomy": {"num_blocks": 400, "block_size": 8, "max_batch_size": 16, "max_num_tokens": 64},
    "preempting": {"num_blocks": 12, "block_size": 8, "max_batch_size": 7, "max_num_tokens": 64},
    "tiny blocks": {"num_blocks": 75, "block_size": 1, "max_batch_size": 3, "max_num_tokens": 9},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", GROUPS)
def test_replays_bring_the_tokens_of_eager_runs_for_requests_of_all_kinds(
    model: Model, name: str, overlap: bool
) -> None:
    found = []
    for capture in (None, run_again):
        group = LocalGroup(model, **GROUPS[name], overlap=overlap, capture=capture)
        requests, _, record, _ = run_fuzz(group, 3, num_requests=50, cancel_rate=0.05, longest=40)
        found.append(record)
    eager, replayed = found
    assert group.eager[""] > 20
    assert set(group.eager) == {"", "prefill"}
    for handle in (request.handle for request in requests):
        if FinishCode.CANCELLED not in (eager.codes[handle], replayed.codes[handle]):
            assert replayed.tokens[handle] == eager.tokens[handle]
            assert replayed.codes[handle] == eager.codes[handle]
            assert [ids for _, ids, _ in replayed.logprobs.get(handle, [])] == [
                ids for _, ids, _ in eager.logprobs.get(handle, [])
            ]
    assert {FinishCode.END_ID, FinishCode.LENGTH, FinishCode.STOP_WORDS} <= set(replayed.codes.values())


class Count:
    """A `Capture` that counts; `replays` are calls after the capture's own."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, program: Program) -> Program:
        self.captures += 1
        program()

        def replay() -> None:
            self.replays += 1
            program()

        return replay


def decode_all(model: Model, count: Count, prompts: list[list[int]], params: list[SamplingParams]) -> LocalGroup:
    group = LocalGroup(model, capture=count, max_batch_size=8, overlap=False)
    group.run([[NewRequest(i + 1, *pair) for i, pair in enumerate(zip(prompts, params, strict=True))]])
    return group


def test_a_program_is_captured_once_for_each_bucket_and_set_of_needs(model: Model) -> None:
    count = Count()
    greedy = SamplingParams(max_tokens=9, temperature=0.0)
    decode_all(model, count, [[5, 6], [7, 8, 9], [1, 2]], [greedy] * 3)
    assert count.captures == 1
    assert count.replays == 8  # the first tokens came with the prompts
    decode_all(model, count := Count(), [[5, 6]] * 2, [greedy, SamplingParams(max_tokens=5, temperature=1.0)])
    assert count.captures == 2  # the sampled one ends first, then one greedy row in a smaller bucket is left


def test_penalties_are_captured_anew_when_their_table_has_grown(model: Model) -> None:
    penalised = SamplingParams(max_tokens=12, temperature=0.0, repetition_penalty=1.5)
    prompts = [[3 + i, 9, 4] for i in range(5)]
    group = LocalGroup(model, capture=run_again, max_batch_size=8)
    turns = [[NewRequest(i + 1, prompt, penalised)] for i, prompt in enumerate(prompts)]  # one more at each step
    tokens = group.run(turns).tokens
    for index, prompt in enumerate(prompts):
        assert LocalGroup(model).generate([prompt], penalised) == [tokens[index + 1]]


def test_nothing_is_copied_in_when_nothing_changed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.create_cache(32, 16)
    group = LocalGroup(model, max_batch_size=4, block_size=16, num_blocks=32)
    scheduler, runner = group.scheduler, _runner(group.scheduler, model)
    graphs = runner.use_graphs(run_again, model.max_model_len)
    _start(scheduler, runner)
    told: list[Any] = []
    fill = graphs._inputs.fill

    def note(array: Any) -> Any:
        told.append(array.tolist())
        return array

    monkeypatch.setattr(graphs._inputs, "fill", lambda name, array: fill(name, note(array)))
    grants = runner._blocks._inputs
    fill_grants = grants.fill
    monkeypatch.setattr(grants, "fill", lambda name, array: fill_grants(name, note(array)))
    for _ in range(4):
        _decode(scheduler, runner)
    assert told == [[4], [0]]  # the capture's own row, nobody's, and then the only row, once


def _runner(scheduler: Scheduler, model: Model) -> Runner:
    return Runner(model, scheduler.table, scheduler.pool.block_size, 64)


def _start(scheduler: Scheduler, runner: Runner) -> None:
    request = NewRequest(1, [5, 6, 7], SamplingParams(max_tokens=9, temperature=0.0))
    scheduler.add(Sequence.of(request, 64))
    _decode(scheduler, runner)


def _decode(scheduler: Scheduler, runner: Runner) -> None:
    sampled = runner.collect(runner.run(scheduler.schedule()))
    scheduler.table.length[sampled.rows] += 1
    scheduler.table.in_flight[sampled.rows] -= 1


@pytest.mark.parametrize("most", [1, 2, 3, 7, 64, 100, 1024])
def test_every_number_of_rows_has_a_bucket_that_holds_it_with_little_to_spare(most: int) -> None:
    buckets = choose_buckets(most)
    assert buckets[-1] == most
    assert list(buckets) == sorted(set(buckets))
    for rows in range(1, most + 1):
        bucket = buckets[np.searchsorted(buckets, rows)]
        assert bucket >= rows
        assert bucket - rows <= max(7, bucket // 5)
    assert set(buckets[:-1]) <= set(BUCKETS)


def test_rows_that_ended_on_the_device_write_nothing_more(model: Model) -> None:
    """The host learns of an end a run late: what the row's own slot holds then is what it ended with."""
    prompt = [5, 6, 7]
    plain = LocalGroup(model).generate([prompt], SamplingParams(max_tokens=9, temperature=0.0))[0]
    params = SamplingParams(max_tokens=9, temperature=0.0, end_ids=(plain[3],))
    group = LocalGroup(model, capture=run_again)
    record = group.run([[NewRequest(1, prompt, params), NewRequest(2, prompt, SamplingParams(max_tokens=9))]])
    assert record.tokens[1] == plain[: plain.index(plain[3]) + 1]
    assert record.codes[1] == FinishCode.END_ID


class Refuse:
    """A `Capture` that has no memory for what is captured after the start."""

    def __call__(self, program: Program) -> Program:
        raise CannotCaptureError("there is no memory for it")


def test_what_cannot_be_captured_runs_eager_and_is_counted(model: Model) -> None:
    params = SamplingParams(max_tokens=6, temperature=0.0)
    plain = LocalGroup(model).generate([[5, 6, 7]], params)
    group = LocalGroup(model, capture=Refuse())
    assert group.generate([[5, 6, 7]], params) == plain
    assert set(group.eager) == {"prefill", "uncaptured"}


def test_programs_of_an_outgrown_table_of_counts_are_dropped(model: Model) -> None:
    model.create_cache(64, 16)
    group = LocalGroup(model, max_batch_size=4, num_blocks=64)
    runner = _runner(group.scheduler, model)
    graphs = runner.use_graphs(run_again, model.max_model_len)
    for rows in (1, 2):
        runner.columns.counts.fill(rows, np.array([3, 4], dtype=np.int32), 2)
        graphs.prepare(4, Needs(penalties=True))
        assert [kind.count_rows for kind in graphs._programs] == [runner.columns.counts.num_rows]


def test_draws_that_ask_for_odd_things_share_few_programs(model: Model) -> None:
    model.create_cache(64, 16)
    group = LocalGroup(model, max_batch_size=4, num_blocks=64)
    graphs = _runner(group.scheduler, model).use_graphs(run_again, model.max_model_len)
    for flags in itertools.product((False, True), repeat=len(NEEDS)):
        graphs.prepare(4, Needs(**dict(zip(NEEDS, flags, strict=True))))
    assert len(graphs._programs) == 6
