"""Attention of new tokens against torch: shapes of heads and blocks, norms, windows, splits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lockstep_worker.kernels.decode.attention import Heads, Split, attend
from lockstep_worker.kernels.decode.attention_reference import attend_reference
from lockstep_worker.kernels.decode.join import Parts, join_reference

TILE = Split(splits=1, tokens=16, warps=2, ahead=False, buffers=4)
AHEAD = Split(splits=1, tokens=16, warps=4, ahead=True, buffers=1)


@dataclass(frozen=True)
class Case:
    heads: Heads
    cells: int = 4
    normed: bool = True
    dtype: torch.dtype = torch.float16
    positions: tuple[int, ...] = (0, 16, 37)


def heads(query: int = 4, kv: int = 2, dim: int = 32, window: int | None = None) -> Heads:
    return Heads(query, kv, dim, 1 / math.sqrt(dim), 1e-6, window)


class Inputs:
    """A cache of random keys and values, scattered blocks, and a projection of each row's new token."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(1)
        shape, rows = case.heads, len(case.positions)
        most = max(case.positions) // case.cells + 1
        self.tables = torch.zeros(rows, most + 3, dtype=torch.int32)[:, :most]  # not contiguous
        self.tables.copy_(torch.randperm(rows * most).view(rows, most))
        cache = (rows * most + 1, case.cells, shape.kv_heads, shape.head_dim)
        self.keys, self.values = (torch.randn(cache).to(case.dtype) for _ in range(2))
        self.positions = torch.tensor(case.positions)
        width = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv = torch.randn(rows + 2, width).to(case.dtype)
        angles = torch.arange(64)[:, None] / 100 ** (torch.arange(shape.head_dim // 2) / shape.head_dim)
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], 1)
        self.norms: tuple[Tensor | None, Tensor | None] = (None, None)
        if case.normed:
            self.norms = (torch.randn(shape.head_dim).to(case.dtype), torch.randn(shape.head_dim).to(case.dtype))


def check(case: Case, split: Split, *, joined: bool = True) -> None:
    given, shape = Inputs(case), case.heads
    rows = len(case.positions)
    keys, values = given.keys.clone(), given.values.clone()
    expected = attend_reference(
        given.qkv[:rows], *given.norms, given.cos_sin, keys, values, given.tables, given.positions, shape
    )
    parts = Parts(
        torch.empty(rows, split.splits, shape.query_heads, shape.head_dim, dtype=case.dtype),
        torch.empty(rows, split.splits, shape.query_heads),
        torch.zeros(rows, shape.kv_heads, dtype=torch.int32),
    )
    out = torch.empty(rows, shape.query_heads, shape.head_dim, dtype=case.dtype)
    attend(
        given.qkv,
        *given.norms,
        given.cos_sin,
        given.keys,
        given.values,
        given.tables,
        given.positions,
        out if joined else None,
        parts if split.splits > 1 or not joined else None,
        shape,
        split,
    )
    if not joined:
        out = join_reference(parts.attended_BSHD, parts.weights_BSH)
    assert not parts.arrived_BK.any(), "ready for the next step"
    torch.testing.assert_close(out.float(), expected, atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(given.keys, keys, atol=4e-3, rtol=4e-3)
    assert torch.equal(given.values, values)


@pytest.mark.parametrize("split", [TILE, AHEAD, replace(AHEAD, splits=4), replace(TILE, splits=2)])
@pytest.mark.parametrize("window", [None, 1, 7])
def test_attention_is_torchs_in_every_split(split: Split, window: int | None) -> None:
    check(Case(heads(kv=1, window=window)), split)


def test_heads_without_norms() -> None:
    check(Case(heads(), normed=False), TILE)


@pytest.mark.parametrize(("query", "kv", "dim"), [(2, 2, 64), (3, 1, 96), (16, 1, 24), (14, 2, 64), (2, 1, 128)])
def test_heads_of_any_size_and_number(query: int, kv: int, dim: int) -> None:
    check(Case(heads(query, kv, dim), positions=(30,)), replace(AHEAD, splits=2))


@pytest.mark.parametrize("cells", [1, 3, 16])
def test_blocks_of_any_size(cells: int) -> None:
    check(Case(heads(), cells=cells), TILE)


def test_float32() -> None:
    check(Case(heads(), dtype=torch.float32), replace(TILE, splits=2))


def test_more_than_sixteen_query_heads_a_kv_head_are_refused() -> None:
    with pytest.raises(AssertionError):
        check(Case(heads(query=17, kv=1)), TILE)


@pytest.mark.parametrize("splits", [1, 3])
def test_parts_may_be_left_to_another_to_join(splits: int) -> None:
    check(Case(heads(), positions=(30,)), replace(AHEAD, splits=splits), joined=False)
