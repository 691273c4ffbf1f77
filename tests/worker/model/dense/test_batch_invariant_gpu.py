"""On a GPU at real sizes: a request's logits are the same bits in any batch, chunk, bucket or graph."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from support.kernels.batches import as_captured
from support.kernels.dense_network import Shape
from support.kernels.fixed import FixedNetwork

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
SMALL = Shape(1024, 16, 8, 128, 3072, 151936, layers=3, longest=1024, normed=True, dtype=BF16)  # Qwen3 0.6B's layers
LARGE = Shape(4096, 32, 8, 128, 12288, 151936, layers=2, longest=1024, normed=True, dtype=BF16)  # Qwen3 8B's
ODD = Shape(896, 14, 2, 64, 4864, 20001, layers=2, longest=1024, biased=True, dtype=BF16)  # Qwen2 0.5B's
WINDOWED = Shape(768, 12, 4, 96, 2048, 20001, layers=2, longest=1024, window=100, dtype=torch.float16)
SHAPES = {"small": SMALL, "large": LARGE, "odd": ODD, "windowed": WINDOWED}
LENGTH = 777
CHUNKS = [[776, 1], [512, 265], [770] + [1] * 7, [768, 3, 3, 3], [16] * 48 + [9], [200, 577]]


@cache
def network(name: str) -> FixedNetwork:
    return FixedNetwork(SHAPES[name], blocks=8192, block_size=16, device="cuda")


@cache
def alone(name: str) -> Tensor:
    return network(name).last_logits(LENGTH, [LENGTH], [])


@pytest.mark.parametrize("counts", CHUNKS, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_chunks_of_any_size_bring_the_same_bits(name: str, counts: list[int]) -> None:
    assert torch.equal(network(name).last_logits(LENGTH, counts, []), alone(name))


@pytest.mark.parametrize("batch_size", [1, 7, 64, 200])
@pytest.mark.parametrize("name", SHAPES)
def test_a_decode_brings_the_same_bits_in_any_batch(name: str, batch_size: int) -> None:
    decodes = [(1, 1 + 97 * index % 600) for index in range(batch_size - 1)]
    mixed = [(1 + 31 * index % 40, 41 + 97 * index % 500) for index in range(batch_size - 1)]
    for neighbours in (decodes, mixed):
        found = network(name).last_logits(LENGTH, [LENGTH - 1, 1], neighbours)
        assert torch.equal(found, alone(name))


@pytest.mark.parametrize("bucket", [1, 8, 200])
def test_a_replay_brings_the_same_bits_in_any_bucket(bucket: int) -> None:
    one = network("small")
    own = one.start(LENGTH, seed=1)
    others = [one.start(300, seed=index, num_computed=299) for index in range(2, bucket + 1)]
    one.run(one.pack([own], [LENGTH - 1]))
    own.num_computed = LENGTH - 1
    batch = as_captured(one.pack([own, *others], [1] * bucket), 1024)
    true_lengths = batch.context_lens.clone()
    batch = replace(batch, context_lens=torch.ones_like(true_lengths))
    one.run(batch)  # compiles, which a capture must not
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        logits = one.run(batch)
    batch.context_lens.copy_(true_lengths)
    graph.replay()
    torch.cuda.synchronize()
    one.end(own, *others)
    assert torch.equal(logits[0], alone("small"))
