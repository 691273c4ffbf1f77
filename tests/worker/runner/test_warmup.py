"""Before the first request: the batches that a start runs are real ones, and the largest is among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.model.loader import load_model
from lockstep_worker.runner.capture import CannotCaptureError, Program, WaitsForDeviceError
from lockstep_worker.runner.graphs import DecodeGraphs, choose_buckets
from lockstep_worker.runner.runner import Runner
from lockstep_worker.runner.warmup import COSTLIEST, capture_decodes, list_batches, run_once
from lockstep_worker.sampling import device
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import NEEDS, Needs, SamplingParams, list_needs
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import run_again
from support.worlds.peak import Peak


@pytest.mark.parametrize(
    ("max_batch_size", "max_num_tokens"), [(1, 1), (1, 2048), (2, 5), (7, 7), (64, 64), (64, 2048)]
)
@pytest.mark.parametrize("max_model_len", [2, 33, 4096])
def test_batches_keep_every_limit_and_the_first_is_the_largest(
    max_batch_size: int, max_num_tokens: int, max_model_len: int
) -> None:
    config = Config(model="m", max_batch_size=max_batch_size, max_num_tokens=max_num_tokens)
    batches = list_batches(config, max_model_len)
    assert batches[0].size == max_batch_size
    assert batches[0].sum() >= min(max_num_tokens, max_batch_size * (max_model_len - 1)) * 0.7
    for counts in batches:
        assert counts.size <= max_batch_size
        assert counts.min() >= 1
        assert counts.sum() <= max_num_tokens
        assert counts.max() < max_model_len


def test_each_batch_runs(tmp_path: Path) -> None:
    model = load_model(str(save_tiny_model("llama", tmp_path)), device=torch.device("cpu"), dtype="float32")
    config = Config(model="m", max_batch_size=3, max_num_tokens=40, block_size=4)
    model.create_cache(64, 4)
    for counts in list_batches(config, model.max_model_len):
        run_once(model, config, counts)


EVERYTHING = SamplingParams(
    max_tokens=1, top_p=0.9, min_p=0.1, min_tokens=1, presence_penalty=0.5, logit_bias=((0, 1.0),), end_ids=(2,)
)


def peak_of_a_draw(params: SamplingParams) -> int:
    """Bytes that newcomers and their draw take as a GPU does it."""
    rows, vocabulary, cpu = 4, 3000, torch.device("cpu")
    logits = torch.randn(rows, vocabulary)
    counted = Peak()
    with counted:
        columns = Columns(rows, cpu, vocabulary)
        columns.admit({slot: Sequence.of(NewRequest(slot + 1, [1, 2, 3], params), 10) for slot in range(rows)})
        device.sample(logits, torch.arange(rows), columns, Needs(**dict.fromkeys(list_needs(params), True)))
    return counted.peak


def test_the_draw_that_is_measured_takes_as_much_memory_as_one_that_asks_for_everything() -> None:
    assert set(list_needs(EVERYTHING)) == set(NEEDS)
    assert peak_of_a_draw(EVERYTHING) < 1.01 * peak_of_a_draw(COSTLIEST)


class Noted:
    """A `Capture` that notes each program, or refuses them all."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.count, self.refusal = 0, refusal

    def __call__(self, program: Program) -> Program:
        if self.refusal is not None:
            raise self.refusal
        self.count += 1
        return run_again(program)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    model = load_model(str(save_tiny_model("llama", tmp_path)), device=torch.device("cpu"), dtype="float32")
    model.create_cache(64, 16)
    return Runner(model, SlotTable(5, 64, 4), 16, 64)


def test_the_usual_decodes_are_captured_from_the_largest_to_the_smallest(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, Needs]] = []
    prepare = DecodeGraphs.prepare

    def note(self: DecodeGraphs, bucket: int, needs: Needs) -> None:
        asked.append((bucket, needs))
        prepare(self, bucket, needs)

    monkeypatch.setattr(DecodeGraphs, "prepare", note)
    capture_decodes(runner, 64, capture := Noted())
    assert [bucket for bucket, _ in asked[::2]] == list(reversed(choose_buckets(5)))
    assert {needs for _, needs in asked} == {Needs(), Needs(sampling=True)}
    assert capture.count == len(asked)


def test_a_network_that_waits_for_the_device_is_served_eager(runner: Runner) -> None:
    capture_decodes(runner, 64, Noted(WaitsForDeviceError("it waits")))
    assert runner._graphs is None


@pytest.mark.parametrize("refusal", [CannotCaptureError("no memory"), torch.cuda.OutOfMemoryError("no memory")])
def test_decodes_that_do_not_fit_are_an_error_that_names_the_option(runner: Runner, refusal: Exception) -> None:
    with pytest.raises(ConfigError, match="kv_cache_memory_fraction"):
        capture_decodes(runner, 64, Noted(refusal))
