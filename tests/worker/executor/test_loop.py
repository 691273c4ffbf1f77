"""The whole step loop of one rank, with a real model: ends, cancels, overlap, shutdown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep_worker.errors import RankDiverged
from lockstep_worker.executor.exchange import RankState
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import Pending, Row, SingleComm
from lockstep_worker.wire.messages import Cancel, FinishCode, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup, Record, Script

PROMPT = [5, 6, 7, 8, 90, 41, 33]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


@pytest.fixture(params=[True, False], ids=["overlap", "no overlap"])
def group(request: pytest.FixtureRequest, model: Model) -> LocalGroup:
    return LocalGroup(model, overlap=request.param)


def greedy(max_tokens: int = 12, **options: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain(model: Model) -> list[int]:
    """What the prompt gives when nothing ends it early."""
    return LocalGroup(model).generate([PROMPT], greedy())[0]


def serve(group: LocalGroup, params: SamplingParams) -> tuple[list[int], FinishCode]:
    record = group.run([[NewRequest(1, PROMPT, params)]])
    return record.tokens[1], record.codes[1]


def test_max_tokens_of_one_gives_one_token(group: LocalGroup, plain: list[int]) -> None:
    assert serve(group, greedy(1)) == (plain[:1], FinishCode.LENGTH)


def test_a_request_may_end_with_its_first_token(group: LocalGroup, plain: list[int]) -> None:
    assert serve(group, greedy(end_ids=(plain[0],))) == (plain[:1], FinishCode.END_ID)
    assert serve(group, greedy(stop_token_ids=(plain[0],))) == (plain[:1], FinishCode.STOP_WORDS)


def test_nothing_comes_after_an_end_id(group: LocalGroup, plain: list[int]) -> None:
    end = plain[4]
    assert serve(group, greedy(end_ids=(end,))) == (plain[: plain.index(end) + 1], FinishCode.END_ID)


def test_an_end_id_as_the_last_token_allowed_is_an_end_id(group: LocalGroup, plain: list[int]) -> None:
    first = plain.index(plain[4])
    assert serve(group, greedy(first + 1, end_ids=(plain[4],))) == (plain[: first + 1], FinishCode.END_ID)
    assert serve(group, greedy(first + 1, stop_token_ids=(plain[4],))) == (plain[: first + 1], FinishCode.LENGTH)


def test_generation_stops_at_the_context_limit(group: LocalGroup) -> None:
    longest = group.model.max_model_len
    record = group.run([[NewRequest(1, [7] * (longest - 3), greedy(50)), NewRequest(2, [7] * (longest - 1), greedy())]])
    assert [len(record.tokens[1]), len(record.tokens[2])] == [3, 1]
    assert record.codes == {1: FinishCode.LENGTH, 2: FinishCode.LENGTH}


def test_a_prompt_of_one_token_is_served(group: LocalGroup, model: Model) -> None:
    alone = LocalGroup(model, overlap=False, prefix_cache=False).generate([[9]], greedy())
    assert group.generate([[9], [9, 10]], greedy())[0] == alone[0]


def test_a_repeated_prompt_comes_from_the_prefix_cache_with_equal_tokens(group: LocalGroup, plain: list[int]) -> None:
    prompt = PROMPT * 7
    first = group.generate([prompt], greedy())
    counted = "lockstep_prefix_cache_hit_tokens_total", {"rank": "0"}
    hits = group.registry.get_sample_value(*counted) or 0
    again = LocalGroup.generate(group, [prompt], greedy())
    assert again == first
    assert group.registry.get_sample_value(*counted) == hits + 48


def test_a_cancel_ends_a_request_once_and_its_neighbour_does_not_notice(group: LocalGroup, plain: list[int]) -> None:
    asked = [NewRequest(1, PROMPT, greedy(100)), NewRequest(2, PROMPT, greedy())]
    record = group.run([asked, [], [], [Cancel(1), Cancel(1)], [], [Cancel(1), Cancel(99)]])
    assert record.codes == {1: FinishCode.CANCELLED, 2: FinishCode.LENGTH}
    assert record.tokens[2] == plain
    assert record.tokens[1] == plain[: len(record.tokens[1])]
    assert 0 < len(record.tokens[1]) < 5


def test_a_cancel_in_the_step_of_the_request_itself_answers_it(group: LocalGroup) -> None:
    record = group.run([[NewRequest(1, PROMPT, greedy()), Cancel(1)]])
    assert (record.tokens, record.codes) == ({}, {1: FinishCode.CANCELLED})


def test_what_came_before_or_with_the_shutdown_is_finished(group: LocalGroup, plain: list[int]) -> None:
    source = Script([[NewRequest(1, PROMPT, greedy()), Shutdown()]])
    assert group.follow(source, Record()).tokens == {1: plain}


def test_overlap_takes_as_many_forwards_as_no_overlap(model: Model) -> None:
    counts = []
    for overlap in (True, False):
        group = LocalGroup(model, overlap=overlap)
        group.generate([PROMPT], greedy(30))
        counts.append({kind: child.value for (kind,), child in group.metrics.iterations_total.items()})
    assert counts[0]["decode"] == counts[1]["decode"] == 29
    assert counts[0]["prefill"] == counts[1]["prefill"] == 1


def test_nothing_is_published_when_there_is_nothing_to_say(group: LocalGroup) -> None:
    record = group.run([[], [], [Cancel(4)], []])
    assert (record.tokens, record.codes) == ({}, {})


class Contradicted(SingleComm):
    """Two ranks, of which the other one says something else in one column."""

    size = 2

    def __init__(self, field: str) -> None:
        self.field = field

    def start_allgather(self, row: Row) -> Pending:
        mine = RankState(*row.tolist())
        other = mine._replace(**{self.field: getattr(mine, self.field) + 1})
        return Both(np.array([mine, other]))


class Both:
    def __init__(self, rows: Row) -> None:
        self._rows = rows

    def done(self) -> bool:
        return True

    def rows(self) -> Row:
        return self._rows


@pytest.mark.parametrize("field", ["step", "digest"])
def test_ranks_that_do_not_agree_are_an_error_that_says_on_what(model: Model, field: str) -> None:
    with pytest.raises(RankDiverged, match=f"disagree on {field}"):
        LocalGroup(model, comm=Contradicted(field)).run([])


def test_another_rank_with_work_keeps_the_group_awake(model: Model) -> None:
    """What one rank holds decides for all: a rank without work of its own must not park while another runs."""
    group, source = LocalGroup(model, comm=Contradicted("active")), Limited(10)
    with pytest.raises(StopIteration):
        group.follow(source, Record())
    assert source.waits == 1  # the park of the start, and no other
    assert group.metrics.iterations_total[("empty",)].value == 9


class Limited(Script):
    """Brings nothing, and stops the test after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__([])
        self.steps, self.waits = steps, 0

    def wait(self, timeout_s: float) -> None:
        self.waits += 1

    def take(self) -> list[Inbound]:
        self.steps -= 1
        if self.steps < 0:
            raise StopIteration
        return []


def test_what_the_cache_held_of_a_prompt_is_told_once_and_the_wait_for_a_slot_observed(model: Model) -> None:
    group = LocalGroup(model, max_batch_size=1, block_size=4, num_blocks=64)
    prompt = [*range(9)]
    record = group.run(
        [[NewRequest(handle, prompt, greedy(2)) for handle in (1, 2, 3)], [NewRequest(4, PROMPT, greedy(2))]]
    )
    assert record.cached == {2: 8, 3: 8}
    assert group.registry.get_sample_value("lockstep_queue_seconds_count", {"rank": "0"}) == 4


def test_a_preempted_request_is_not_told_of_its_own_blocks(model: Model) -> None:
    group = LocalGroup(model, block_size=4, num_blocks=8)
    record = group.run([[NewRequest(handle, [handle] * 6, greedy(16)) for handle in (1, 2)]])
    assert group.scheduler.num_preemptions > 0
    assert record.cached == {}
