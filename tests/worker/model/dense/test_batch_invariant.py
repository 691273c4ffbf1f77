"""A request's logits are the same bits alone, among any others, and in chunks of any size."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from support.kernels.dense_network import Shape
from support.kernels.exact_dot import make_dots_exact
from support.kernels.fixed import FixedNetwork

LENGTH = 72
"""More than a tile of keys."""
PLAIN = Shape(96, heads=2, kv_heads=1, head_dim=16, inner=96, vocabulary=200, longest=128, dtype=torch.float32)
"""In float32, which hides no rounding of a sum."""
WINDOWED = Shape(
    hidden=96, heads=3, kv_heads=1, head_dim=24, inner=64, vocabulary=70, longest=128, window=30, biased=True
)
CHUNKS = {
    "as a decode behind its prompt": [71, 1],
    "in chunks of 16": [16, 16, 16, 16, 8],
    "in chunks of 3": [66, 3, 3],
    "token by token": [69, 1, 1, 1],
}
NEIGHBOURS = {
    "beside 3 decodes": [(1, 3), (1, 65), (1, 40)],
    "beside 5 of any kind": [(1, 9), (4, 70), (1, 1), (17, 17), (2, 66)],
}
CROWD = [(1, 1 + index % 5) for index in range(70)]


@pytest.fixture(autouse=True)
def rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    make_dots_exact(monkeypatch)


@cache
def network(shape: Shape, block_size: int) -> FixedNetwork:
    return FixedNetwork(shape, blocks=600 if block_size == 1 else 90, block_size=block_size)


@cache
def alone(shape: Shape, block_size: int) -> Tensor:
    return network(shape, block_size).last_logits(LENGTH, [LENGTH], [])


@pytest.mark.parametrize("counts", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize(("shape", "block_size"), [(PLAIN, 16), (WINDOWED, 1)], ids=["plain", "windowed"])
def test_chunks_of_any_size_bring_the_same_bits(shape: Shape, block_size: int, counts: list[int]) -> None:
    assert torch.equal(network(shape, block_size).last_logits(LENGTH, counts, []), alone(shape, block_size))


@pytest.mark.parametrize(
    ("shape", "block_size", "neighbours"),
    [
        *((PLAIN, 16, neighbours) for neighbours in (*NEIGHBOURS.values(), CROWD)),
        *((WINDOWED, 1, neighbours) for neighbours in NEIGHBOURS.values()),
    ],
    ids=[*NEIGHBOURS, "beside 70 decodes", *(f"{title}, windowed" for title in NEIGHBOURS)],
)
def test_a_decode_brings_the_same_bits_beside_others(
    shape: Shape, block_size: int, neighbours: list[tuple[int, int]]
) -> None:
    one = network(shape, block_size)
    own = one.start(LENGTH, seed=1)
    one.run(one.pack([own], [LENGTH - 1]))
    own.num_computed = LENGTH - 1
    others = [one.start(context, seed=index, num_computed=context - n) for index, (n, context) in enumerate(neighbours)]
    logits = one.run(one.pack([*others, own], [*(n for n, _ in neighbours), 1]))
    one.end(own, *others)
    assert torch.equal(logits[-1], alone(shape, block_size))


def test_a_whole_prompt_brings_the_same_bits_beside_others() -> None:
    neighbours = NEIGHBOURS["beside 5 of any kind"]
    found = network(PLAIN, 16).last_logits(LENGTH, [LENGTH], neighbours)
    assert torch.equal(found, alone(PLAIN, 16))
    assert found.isfinite().all() and found.std() > 0.1
