"""Before the first request: the batches that a start runs are real ones, and the largest is among them."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.config import Config
from lockstep_worker.model.loader import load_model
from lockstep_worker.runner.graphs import DecodeGraphs, choose_buckets
from lockstep_worker.runner.runner import Runner
from lockstep_worker.runner.warmup import capture_decodes, list_batches, run_once
from lockstep_worker.schedule.slots import SlotTable
from lockstep_worker.wire.params import Needs
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import run_again


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


def test_each_batch_runs(tmp_path: object) -> None:
    model = load_model(str(save_tiny_model("llama", tmp_path)), device=torch.device("cpu"), dtype="float32")  # type: ignore[arg-type]
    config = Config(model="m", max_batch_size=3, max_num_tokens=40, block_size=4)
    model.create_cache(64, 4)
    for counts in list_batches(config, model.max_model_len):
        run_once(model, config, counts)


def test_the_usual_decodes_are_captured_from_the_largest_to_the_smallest(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(save_tiny_model("llama", tmp_path)), device=torch.device("cpu"), dtype="float32")  # type: ignore[arg-type]
    model.create_cache(64, 16)
    runner = Runner(model, SlotTable(5, 64, 4), 16, 64)
    asked: list[tuple[int, Needs]] = []
    prepare = DecodeGraphs.prepare

    def note(self: DecodeGraphs, bucket: int, needs: Needs, *, keeps_logits: bool = False) -> object:
        asked.append((bucket, needs))
        return prepare(self, bucket, needs, keeps_logits=keeps_logits)

    monkeypatch.setattr(DecodeGraphs, "prepare", note)
    capture_decodes(runner.use_graphs(run_again, 64))
    assert [bucket for bucket, _ in asked[::2]] == list(reversed(choose_buckets(5)))
    assert {needs for _, needs in asked} == {Needs(), Needs(sampling=True)}
