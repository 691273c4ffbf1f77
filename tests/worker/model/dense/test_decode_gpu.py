"""Decode steps on a GPU in bfloat16: as close to the network as bfloat16 is, and the same bits however they are run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels.draw import draw_tiles, pick
from lockstep_worker.model.dense.decode import DecodeStep
from lockstep_worker.model.dense.decode_input import StepInput
from lockstep_worker.model.dense.weights import DenseWeights
from support.kernels.dense_network import Shape, random_cache, random_network, reference_step
from support.kernels.draws import drawing

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
SMALL = Shape(1024, 16, 8, 128, 3072, 151936, layers=3, longest=1024, normed=True, dtype=BF16)  # Qwen3 0.6B's layers
LARGE = Shape(4096, 32, 8, 128, 12288, 151936, layers=1, longest=1024, normed=True, dtype=BF16)  # Qwen3 8B's
ODD = Shape(896, 14, 2, 64, 4864, 20001, layers=2, longest=1024, biased=True, dtype=BF16)  # Qwen2 0.5B's
WINDOWED = Shape(768, 12, 4, 96, 2048, 20001, layers=2, longest=1024, window=100, dtype=torch.float16)
BLOCK_SIZE, BLOCKS = 16, 64
TEMPERATURES = [0.7, 0.0, 5.0, 1.0]


@dataclass
class Run:
    weights: DenseWeights
    shape: Shape
    rows: int

    def cache(self) -> KVCache:
        return random_cache(self.shape, self.rows * BLOCKS, BLOCK_SIZE, "cuda")

    def step(self) -> StepInput:
        torch.manual_seed(self.rows)
        tables = torch.randperm(self.rows * BLOCKS, device="cuda").int().view(self.rows, BLOCKS)
        tokens = torch.randint(0, self.shape.vocabulary, (self.rows,), device="cuda")
        return StepInput(tokens, torch.arange(self.rows, device="cuda") * 37 % 800, tables)


def following(step: StepInput) -> StepInput:
    return StepInput(step.tokens * 7 % 20000, step.positions + 1, step.block_tables)


@pytest.mark.parametrize("rows", [1, 3, 17, 64, 100, 256])
@pytest.mark.parametrize("shape", [SMALL, LARGE, ODD, WINDOWED], ids=["small", "large", "odd", "windowed"])
def test_two_steps_are_the_networks(shape: Shape, rows: int) -> None:
    run = Run(random_network(shape, "cuda"), shape, rows)
    cache, expected_cache, step = run.cache(), run.cache(), run.step()
    decode = DecodeStep(run.weights, cache, rows, pdl=True)
    for _ in range(2):
        logits, expected = decode.logits(step), reference_step(run.weights, expected_cache, step)
        assert (logits - expected).norm() / expected.norm() < 0.02
        tokens = pick(decode.best(step))
        assert torch.equal(logits.gather(1, tokens[:, None])[:, 0], logits.max(1).values)
        step = following(step)
    for ours, theirs in zip(cache.keys + cache.values, expected_cache.keys + expected_cache.values, strict=True):
        assert (ours.float() - theirs.float()).abs().max() < 0.1


@pytest.mark.parametrize("rows", [1, 3, 17, 64, 100, 256])
@pytest.mark.parametrize("shape", [SMALL, LARGE, ODD], ids=["small", "large", "odd"])
def test_a_head_draws_what_is_drawn_from_its_logits(shape: Shape, rows: int) -> None:
    run, draw = Run(random_network(shape, "cuda"), shape, rows), drawing((TEMPERATURES * rows)[:rows], "cuda")
    decode, step = DecodeStep(run.weights, run.cache(), rows, pdl=True), run.step()
    for _ in range(3):
        expected = pick(draw_tiles(decode.logits(step), draw))
        assert torch.equal(pick(decode.best(step, draw)), expected)
        draw.lengths.add_(1)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 64, 100, 256])
def test_kernels_that_overlap_and_graphs_change_no_bit(rows: int, drawn: bool) -> None:
    run = Run(random_network(SMALL, "cuda"), SMALL, rows)
    apart = outcome(run, drawn=drawn, pdl=False, captured=False)
    for captured in (False, True):
        for _ in range(3):
            together = outcome(run, drawn=drawn, pdl=True, captured=captured)
            assert all(torch.equal(one, other) for one, other in zip(apart, together, strict=True))


def outcome(run: Run, *, drawn: bool, pdl: bool, captured: bool) -> list[Tensor]:
    """The best of three steps in a row and the cache that they leave; captured once and replayed, or run each time."""
    cache, step = run.cache(), run.step()
    draw = drawing((TEMPERATURES * run.rows)[: run.rows], "cuda") if drawn else None
    decode = DecodeStep(run.weights, cache, run.rows, pdl=pdl)
    best = decode.best(step, draw)  # compiles, which a capture must not
    graph = torch.cuda.CUDAGraph()
    if captured:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            best = decode.best(step, draw)
    out = []
    for _ in range(3):
        if captured:
            graph.replay()
        else:
            best = decode.best(step, draw)
        out += [part.clone() for part in (best.highs_nB, best.lows_nB, best.ids_nB) if part is not None]
        step.tokens.mul_(7).remainder_(20000)
        step.positions.add_(1)
        if draw is not None:
            draw.lengths.add_(1)
    torch.cuda.synchronize()
    return [*out, *cache.keys, *cache.values]
