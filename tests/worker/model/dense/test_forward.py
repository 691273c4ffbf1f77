"""The fast path's forward against transformers' own, over the same weights and the same attention."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch
from support.data import recall_model
from support.data.tiny_models import VOCAB
from support.worlds.dense import DENSE, DenseModel, build, convert
from support.worlds.greedy import GreedyDriver, Sequence, pack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCK = 8

QWEN3 = hf.Qwen3Config(
    vocab_size=8000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=2,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
)
"""The layers of Qwen3-0.6B, two of them."""


def start(model: Any, lengths: tuple[int, ...], vocab: int = VOCAB) -> list[Sequence]:
    """Sequences of random tokens, none of them in the cache yet, with their blocks."""
    rng = random.Random(5)
    driver = GreedyDriver(model, num_blocks=100, block_size=BLOCK)
    sequences = [driver.start([rng.randrange(vocab) for _ in range(length)], 9) for length in lengths]
    for sequence in sequences:
        sequence.blocks += driver.pool.allocate(-(-len(sequence.tokens) // BLOCK))
    return sequences


def take_step(model: DenseModel, sequences: list[Sequence], counts: tuple[int, ...]) -> PackedBatch:
    """Pack the next tokens; wanted are every second one's logits, the last one's first."""
    packed = pack(sequences, list(counts), BLOCK, model.device)
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.num_computed += count
    return replace(packed, logit_rows=torch.arange(sum(counts) - 1, -1, -2, device=model.device))


def compute_both(model: DenseModel, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Logits by the fast path and by transformers; the first's keys and values stay in the cache."""
    theirs = model.forward_by_transformers(batch)
    for tensor in [*model.kv.keys, *model.kv.values]:
        tensor.flatten(0, 1)[batch.kv_cells] = torch.nan  # what the fast path does not write shows
    return model.forward(batch), theirs


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2", "qwen3-window", "yarn"])
def test_logits_equal_transformers_for_prompts_a_mixed_step_and_decodes(name: str) -> None:
    model = DenseModel(build(DENSE[name](), device=DEVICE))
    sequences = start(model, (3, 10, 4))
    for counts in ((1, 6, 2), (1, 3, 1), (1, 1, 1)):
        ours, theirs = compute_both(model, take_step(model, sequences, counts))
        assert ours.dtype == torch.float32 and ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_hidden_half_lacks_only_the_head_and_no_wanted_rows_give_none() -> None:
    model = DenseModel(build(DENSE["qwen3"](), device=DEVICE))
    sequences = start(model, (6, 4))
    batch = take_step(model, sequences, (5, 3))
    logits = model.forward(batch)
    hidden = model.fast.hidden(batch, model.attention.prepare(batch))
    assert hidden.shape == (4, 32)
    torch.testing.assert_close(hidden @ model.weights.head.T, logits)
    none = replace(batch, logit_rows=batch.logit_rows[:0])
    assert model.forward(none).shape == (0, VOCAB)


def test_half_precision_is_as_close_to_float32_as_transformers_is() -> None:
    def load(dtype: torch.dtype) -> DenseModel:
        return DenseModel(build(DENSE["qwen3"](), dtype, DEVICE))

    assert_as_close(load, torch.float16, (13, 6, 1), VOCAB)


def assert_as_close(
    load: Callable[[torch.dtype], DenseModel], dtype: torch.dtype, lengths: tuple[int, ...], vocab: int
) -> None:
    """Both forwards in a narrow dtype against transformers' in float32: ours is at most 1.5 times as far off."""
    exact, narrow = load(torch.float32), load(dtype)
    expected = exact.forward_by_transformers(take_step(exact, start(exact, lengths, vocab), lengths))
    ours, theirs = compute_both(narrow, take_step(narrow, start(narrow, lengths, vocab), lengths))
    assert (theirs - expected).abs().max() > 0
    assert (ours - expected).abs().max() <= 1.5 * (theirs - expected).abs().max()


def test_greedy_tokens_of_the_recall_model_equal_transformers() -> None:
    prompts = recall_model.prompts(8, 6)[4:]
    loaded = recall_model.load_recall()
    model: Any = DenseModel(loaded._network.to(DEVICE), loaded.end_ids)
    reference = recall_model.reference()
    expected = [recall_model.generate(reference, prompt, 6) for prompt in prompts]
    assert GreedyDriver(model, chunk=20).run(prompts, 6) == expected


@pytest.mark.gpu
def test_bfloat16_of_a_trained_model_is_as_close_to_float32_as_transformers_is() -> None:
    def load(dtype: torch.dtype) -> DenseModel:
        return DenseModel(convert(recall_model.load_recall()._network, dtype, "cuda"))

    assert_as_close(load, torch.bfloat16, (200, 33, 1, 64), 448)


@pytest.mark.gpu
def test_bfloat16_of_wide_layers_is_as_close_to_float32_as_transformers_is() -> None:
    def load(dtype: torch.dtype) -> DenseModel:
        return DenseModel(build(QWEN3, dtype, "cuda"))

    assert_as_close(load, torch.bfloat16, (200, 33, 1, 64), 8000)


@pytest.mark.gpu
def test_a_graph_captures_a_step_of_decodes_and_replays_it_on_other_tokens() -> None:
    model = DenseModel(build(QWEN3, torch.bfloat16, "cuda"))
    sequences = start(model, (9, 3))
    model.forward(take_step(model, sequences, (8, 2)))
    batch = take_step(model, sequences, (1, 1))
    run = model.attention.prepare(batch)
    model.fast(batch, run)  # compiles, and lets cuBLAS allocate
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model.fast(batch, run)
    for shift in (0, 17):
        batch.input_ids.add_(shift)
        graph.replay()
        torch.testing.assert_close(captured, model.forward(batch))
