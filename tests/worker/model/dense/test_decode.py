"""Whole decode steps against a network in plain torch, over two steps: the second reads what the first wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lockstep_worker.kernels.draw import draw_tiles, pick
from lockstep_worker.model.dense.decode import DecodeStep, cuts_for, serves
from lockstep_worker.model.dense.decode_batch import BatchStep
from lockstep_worker.model.dense.decode_input import StepInput
from support.kernels.dense_network import Shape, random_cache, random_network, reference_step
from support.kernels.draws import drawing

LLAMA = Shape()
SHALLOW = Shape(layers=1)
QWEN2 = Shape(biased=True, heads=6, kv_heads=1, head_dim=24)
QWEN3 = Shape(normed=True, head_dim=96, hidden=256)
MISTRAL = Shape(window=5)
BLOCK_SIZE, BLOCKS = 4, 5


def rows_of(count: int) -> StepInput:
    """Rows at different positions, with blocks of their own in no order."""
    torch.manual_seed(count)
    tables = torch.randperm(count * BLOCKS).int().view(count, BLOCKS)
    return StepInput(torch.randint(20, 140, (count,)), torch.arange(count) * 5 % 18, tables)


def following(step: StepInput) -> StepInput:
    return StepInput((step.tokens * 7 + 1) % 300, step.positions + 1, step.block_tables)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("shape", [LLAMA, QWEN2, QWEN3, MISTRAL], ids=["llama", "qwen2", "qwen3", "mistral"])
def test_two_steps_are_the_networks(shape: Shape, rows: int) -> None:
    check_steps(shape, rows)


@pytest.mark.parametrize("rows", [5, 70])
def test_many_rows_are_the_networks(rows: int) -> None:
    """5 rows do not split their contexts; 70 are more than a tile: torch multiplies."""
    check_steps(Shape(normed=True, biased=True, layers=1, heads=2, kv_heads=1), rows, steps=1)


def test_float32_is_the_networks_to_the_last_bits() -> None:
    check_steps(replace(LLAMA, layers=1, dtype=torch.float32), 2, tolerance=1e-4)
    check_steps(replace(LLAMA, layers=1, dtype=torch.float32), 1, tolerance=1e-4)


def check_steps(shape: Shape, rows: int, tolerance: float = 0.02, steps: int = 2) -> None:
    weights = random_network(shape)
    assert serves(weights)
    cache, expected_cache = (random_cache(shape, rows * BLOCKS, BLOCK_SIZE) for _ in range(2))
    decode, step = DecodeStep(weights, cache, max_rows=rows, pdl=False), rows_of(rows)
    for _ in range(steps):
        logits = decode.logits(step)
        torch.testing.assert_close(logits, reference_step(weights, expected_cache, step), atol=tolerance, rtol=0)
        step = following(step)
    for ours, theirs in zip(cache.keys + cache.values, expected_cache.keys + expected_cache.values, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_best_of_all_tiles_is_the_highest_logit(rows: int) -> None:
    weights, step = random_network(SHALLOW), rows_of(rows)
    decode = DecodeStep(weights, random_cache(SHALLOW, rows * BLOCKS, BLOCK_SIZE), max_rows=3, pdl=False)
    logits = decode.logits(step)
    assert torch.equal(pick(decode.best(step)), logits.argmax(1))


@pytest.mark.parametrize("temperatures", [[0.7], [0.0], [5.0, 0.0, 0.7]])
def test_a_step_that_draws_brings_the_draws_from_its_logits(temperatures: list[float]) -> None:
    rows, draw = len(temperatures), drawing(temperatures)
    weights, step = random_network(SHALLOW), rows_of(rows)
    decode = DecodeStep(weights, random_cache(SHALLOW, rows * BLOCKS, BLOCK_SIZE), max_rows=3, pdl=False)
    logits = decode.logits(step)
    assert torch.equal(pick(decode.best(step, draw)), pick(draw_tiles(logits, draw)))
    assert torch.equal(pick(decode.best(step)), logits.argmax(1))


@pytest.mark.parametrize("rows", [1, 2])
def test_of_equal_logits_the_lowest_id_wins_across_tiles(rows: int) -> None:
    weights, step = random_network(SHALLOW), rows_of(rows)
    decode = DecodeStep(weights, random_cache(SHALLOW, rows * BLOCKS, BLOCK_SIZE), max_rows=2, pdl=False)
    winner = int(decode.logits(step)[0].argmax())
    ids = [17, 18, 150, 299]
    weights.head[ids] = weights.head[winner] * 2  # the head is the embedding: rows_of takes no token of these
    assert pick(decode.best(step))[0] == 17


def test_one_row_and_many_agree() -> None:
    weights, step = random_network(SHALLOW), rows_of(1)
    one, many = (random_cache(SHALLOW, BLOCKS, BLOCK_SIZE) for _ in range(2))
    logits = DecodeStep(weights, one, max_rows=1, pdl=False).logits(step)
    as_many = BatchStep(weights, many, max_rows=1, cuts=replace(cuts_for(weights.embedding.device), chain=0)).logits(
        step
    )
    torch.testing.assert_close(logits, as_many, atol=0.02, rtol=0)


def test_a_row_has_the_same_bits_wherever_it_stands_and_whoever_is_beside_it() -> None:
    weights, step = random_network(SHALLOW), rows_of(5)
    order = torch.tensor([3, 1, 4, 2, 0])
    moved = StepInput(step.tokens[order], step.positions[order], step.block_tables[order])
    caches = [random_cache(SHALLOW, 5 * BLOCKS, BLOCK_SIZE) for _ in range(2)]
    first, second = (DecodeStep(weights, cache, max_rows=5, pdl=False) for cache in caches)
    assert torch.equal(first.logits(step)[order], second.logits(moved))


def test_networks_whose_rows_are_not_whole_vectors_of_sixteen_bytes_are_not_served() -> None:
    assert not serves(random_network(Shape(hidden=100)))
    assert not serves(random_network(Shape(heads=17, kv_heads=1)))
    assert not serves(random_network(Shape(head_dim=288)))
