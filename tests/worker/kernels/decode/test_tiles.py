"""Multiplications in tiles against torch, in every epilogue, with tiles that do not fit the columns."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.kernels.decode.tiles import Tile, best, gated, partial, plain
from lockstep_worker.kernels.decode.tiles_reference import (
    best_reference,
    gated_reference,
    partial_reference,
    plain_reference,
)
from lockstep_worker.kernels.draw import draw_tiles, pick
from support.kernels.draws import candidates, check_equal, drawing

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # inf - inf, as on a GPU
SMALL = Tile(64, 32, 32)
WIDE = Tile(64, 32, 64, block_n2=16)
DTYPES = [torch.float16, torch.float32]


def operands(columns: int, length: int, dtype: torch.dtype, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + columns)
    return torch.randn(rows, length).to(dtype), (torch.randn(columns, length) / length**0.5).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [SMALL, WIDE])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_torchs_and_columns_beyond_the_last_are_left_alone(
    dtype: torch.dtype, tile: Tile, biased: bool
) -> None:
    x, w = operands(100, 96, dtype)
    bias = torch.randn(100).to(dtype) if biased else None
    guarded = torch.full((65, 100), 7.0, dtype=dtype)
    plain(x, w, bias, guarded[:64], tile)
    torch.testing.assert_close(guarded[:64], plain_reference(x, w, bias, dtype), atol=4e-3, rtol=4e-3)
    assert (guarded[64] == 7).all()


def test_rows_that_only_fill_a_tile_are_not_stored() -> None:
    x, w = operands(100, 64, torch.float16, rows=128)
    out = torch.full((70, 100), 7.0)
    plain(x, w, None, out[:67], SMALL)
    torch.testing.assert_close(out[:67], plain_reference(x, w, None, torch.float32)[:67], atol=1e-3, rtol=1e-3)
    assert (out[67:] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [SMALL, WIDE])
def test_a_gated_product_takes_gate_and_up_of_the_same_column(dtype: torch.dtype, tile: Tile) -> None:
    x, w = operands(2 * 84, 96, dtype)
    out = torch.empty(64, 84, dtype=dtype)
    gated(x, w, out, tile)
    torch.testing.assert_close(out, gated_reference(x, w), atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("split_k", [1, 2, 4])
def test_parts_of_a_sum_are_each_their_own_and_add_up(split_k: int) -> None:
    x, w = operands(100, 128, torch.float16, rows=128)
    parts = torch.empty(split_k, 128, 100)
    partial(x, w, parts, Tile(64, 64, 32, split_k=split_k, block_n2=16))
    torch.testing.assert_close(parts, partial_reference(x, w, split_k), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(parts.sum(0), plain_reference(x, w, None, torch.float32), atol=1e-3, rtol=1e-3)


def test_the_best_of_each_tile_is_found_and_columns_beyond_the_last_never_win() -> None:
    x, w = operands(300, 64, torch.float16)
    x[0] = 1
    w[288:] = -w[288:].abs()  # row 0's scores in the last tile are negative: a column beyond, as zeros, would win
    found = candidates(5, 10, drawn=False)
    best(x, w, None, found, SMALL)
    expected_values, expected_ids = best_reference(x[:5], w, 32)
    torch.testing.assert_close(found.highs_nB, expected_values, atol=1e-3, rtol=1e-3)
    assert found.ids_nB.tolist() == expected_ids.tolist()


def test_of_equal_scores_the_lowest_column_is_best() -> None:
    x, w = operands(64, 64, torch.float16)
    w[40] = w[33] = w[63] = x[0]
    for draw in (None, drawing([0.0])):
        found = candidates(1, 2, drawn=draw is not None)
        best(x, w, draw, found, SMALL)
        assert found.ids_nB[0, 1] == 33


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperatures", [[5.0], [5.0, 0.0, 0.7], [0.0, 5.0, 3e38, 1e-6, 0.7]])
def test_a_head_that_draws_finds_what_a_draw_from_its_logits_finds(
    dtype: torch.dtype, temperatures: list[float]
) -> None:
    count, draw = len(temperatures), drawing(temperatures)
    x, w = operands(300, 64, dtype)
    logits, found = torch.empty(count, 300), candidates(count, 10, drawn=True)
    plain(x, w, None, logits, SMALL)
    best(x, w, draw, found, SMALL)
    expected = draw_tiles(logits, draw, tile=32)
    check_equal(found, expected)
    assert pick(found).tolist() == pick(expected).tolist() != logits.argmax(1).tolist()


def test_what_is_no_number_is_banned_whether_the_head_draws_or_not() -> None:
    x, w = operands(64, 64, torch.float32)
    w[33:62] = float("nan")
    w[5] = float("inf") * x[0].sign()
    for draw in (None, drawing([0.0]), drawing([1.0])):
        found = candidates(1, 2, drawn=draw is not None)
        best(x, w, draw, found, SMALL)
        assert found.ids_nB[0, 0] == 5 and found.highs_nB[0, 0] == torch.inf
        assert int(found.ids_nB[0, 1]) in {32, 62, 63} and found.highs_nB[0, 1].isfinite()


def test_a_cut_that_does_not_fit_is_refused() -> None:
    x, w = operands(64, 96, torch.float16)
    with pytest.raises(AssertionError, match="whole tiles"):
        partial(x, w, torch.empty(2, 64, 64), Tile(64, 32, 64, split_k=2))
