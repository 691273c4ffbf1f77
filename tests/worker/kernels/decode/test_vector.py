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
)
from lockstep_worker.kernels.draw import draw_tiles, pick
from support.kernels.draws import candidates, check_equal, drawing

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # inf - inf, as on a GPU
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
    scores = F.pad(normed_reference(w, residual, norm, EPS, None), (0, 4), value=-torch.inf).view(38, 8)
    for draw in (None, drawing([0.0])):
        found = candidates(1, 38, drawn=draw is not None)
        normed_best(w, residual, norm, EPS, draw, found, CUT)
        close(found.highs_nB[0], scores.max(1).values)
        assert found.ids_nB[0, 2] == 18 and found.ids_nB[0, 37] < 300


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 5.0])
def test_a_head_that_draws_finds_what_a_draw_from_its_logits_finds(dtype: torch.dtype, temperature: float) -> None:
    w, residual, norm = operands(300, 64, dtype)
    draw, logits, found = drawing([temperature]), torch.empty(1, 300), candidates(1, 38, drawn=True)
    normed(w, residual, norm, EPS, None, logits[0], CUT)
    normed_best(w, residual, norm, EPS, draw, found, CUT)
    expected = draw_tiles(logits, draw, tile=8)
    check_equal(found, expected)
    assert pick(found).tolist() == pick(expected).tolist()
    assert (pick(found) == logits.argmax(1)).all() == (temperature == 0)


def test_a_row_that_is_no_number_is_banned_whether_the_head_draws_or_not() -> None:
    w, residual, norm = operands(16, 64, torch.float32)
    w[:7] = w[9:] = float("nan")
    for draw in (None, drawing([1.0])):
        found = candidates(1, 2, drawn=draw is not None)
        normed_best(w, residual, norm, EPS, draw, found, CUT)
        assert found.ids_nB.tolist() == [[7, 8]] and found.highs_nB.isfinite().all()


@pytest.mark.parametrize(("rows", "length"), [(96, 64), (100, 200)])
def test_down_adds_to_the_residual(rows: int, length: int) -> None:
    w, x, _ = operands(rows, length, torch.float16)
    before = torch.randn(rows)
    residual = before.clone()
    down(w, x, residual, CUT)
    close(residual, before + w.float() @ x)
