"""A row's multiplications against torch, with sizes that fit neither rows a program nor powers of two."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lockstep_worker.kernels.decode.vector import (
    Vector,
    down,
    normed,
    normed_best,
    normed_gated,
    normed_reference,
    out,
    out_reference,
)

EPS = 1e-5
CUT = Vector(rows=8, warps=4)
close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)


def operands(rows: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return (torch.randn(rows, length) / length**0.5).to(dtype), torch.randn(length), torch.randn(length).to(dtype)


@pytest.mark.parametrize(("rows", "length"), [(96, 64), (100, 96)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_normed_product_is_torchs(rows: int, length: int, dtype: torch.dtype) -> None:
    w, residual, norm = operands(rows, length, dtype)
    bias = torch.randn(rows).to(dtype)
    result = torch.full((rows + 1,), 7.0)
    normed(w, residual, norm, EPS, bias, result[:rows], CUT)
    close(result[:rows], normed_reference(w, residual, norm, EPS, bias))
    assert result[rows] == 7


def test_a_gated_product_takes_gate_and_up_of_the_same_row() -> None:
    w, residual, norm = operands(2 * 84, 96, torch.float16)
    result = torch.empty(84)
    normed_gated(w, residual, norm, EPS, result, CUT)
    gate, up = normed_reference(w, residual, norm, EPS, None).chunk(2)
    close(result, F.silu(gate) * up)


def test_the_best_of_each_program_is_the_lowest_of_equals_and_a_real_row() -> None:
    w, residual, norm = operands(300, 64, torch.float16)
    x = F.rms_norm(residual, (64,), norm.float(), EPS)
    w[:] = -w.abs() * x.sign()  # all scores negative: a row beyond the last, as zeros, would win
    w[21] = w[18] = -w[17]
    values, ids = torch.empty(38), torch.empty(38, dtype=torch.int32)
    normed_best(w, residual, norm, EPS, values, ids, CUT)
    scores = F.pad(normed_reference(w, residual, norm, EPS, None), (0, 4), value=-torch.inf).view(38, 8)
    close(values, scores.max(1).values)
    assert ids[2] == 18 and ids[37] < 300


@pytest.mark.parametrize(("rows", "length"), [(96, 64), (100, 200)])
def test_down_adds_to_the_residual(rows: int, length: int) -> None:
    w, x, _ = operands(rows, length, torch.float16)
    before = torch.randn(rows)
    residual = before.clone()
    down(w, x, residual, CUT)
    close(residual, before + w.float() @ x)


@pytest.mark.parametrize(("heads", "dim", "splits"), [(4, 32, 1), (3, 24, 4), (2, 64, 8)])
def test_out_joins_the_splits_and_adds_to_the_residual(heads: int, dim: int, splits: int) -> None:
    w, _, _ = operands(100, heads * dim, torch.float16)
    parts, weights = torch.randn(splits, heads, dim).half(), torch.randn(splits, heads) * 3
    weights[0] = -1e30 if splits > 1 else 0.0  # a split without a token
    before = torch.randn(100)
    residual = before.clone()
    out(w, parts, weights, residual, CUT)
    close(residual, out_reference(w, parts, weights, before))
