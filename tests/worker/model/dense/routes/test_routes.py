"""Every multiplication of every network has a valid cut, and what was measured is what is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep_worker.kernels import chain
from lockstep_worker.kernels.decode.attention import Split
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes import measured, rules
from lockstep_worker.model.dense.routes.cuts import Cuts
from lockstep_worker.model.dense.routes.uses import BUCKETS, Use, fits, heights, padded

SMS = 132
CUTS = Cuts(SMS)
OPERAND_BYTES = 220 * 1024
USES: tuple[Use, ...] = ("qkv", "residual", "gate_up", "head")
SHAPES = [(96, 64), (896, 896), (1152, 896), (9728, 896), (3072, 8192), (5120, 13824), (57344, 8192), (151936, 5120)]


def operand_bytes(tile: Tile, use: Use) -> int:
    columns = tile.columns * (2 if use == "gate_up" else 1)
    return (tile.block_m + columns) * tile.block_k * tile.buffers * 2


@pytest.mark.parametrize("rows", [2, 16, 17, 64, 65, 200, 1000])
@pytest.mark.parametrize("use", USES)
def test_any_shape_has_a_cut_that_fits(rows: int, use: Use) -> None:
    for out, length in SHAPES:
        tile = CUTS.tile(use, padded(rows), out, length)
        assert tile is not None or (rows > 64 and use != "head"), "only many rows are left to torch, never the head"
        if tile:
            assert fits(tile, use, padded(rows), length) and operand_bytes(tile, use) <= OPERAND_BYTES
            assert tile.buffers >= 2


@pytest.mark.parametrize("bucket", BUCKETS)
def test_what_was_measured_fits_and_is_used(bucket: int) -> None:
    entries = {key: tile for key, tile in measured.tiles().items() if key[0] == bucket}
    assert entries
    for (_, use, out, length), tile in entries.items():
        assert tile is None or fits(tile, use, bucket, length)
        assert CUTS.tile(use, bucket, out, length) == tile


def test_a_measured_tile_that_does_not_fit_other_rows_is_not_used() -> None:
    assert CUTS.tile("qkv", 64, 4096, 1024) == Tile(64, 32, 128, buffers=5, ahead=4096)
    assert CUTS.tile("qkv", 128, 4096, 1024) == Tile(64, 64, 64, buffers=6)
    assert CUTS.tile("qkv", 384, 4096, 1024) is None


def test_few_columns_are_split_and_one_wave_is_filled() -> None:
    tile = rules.tile("residual", 64, 1024, 4096, SMS)
    assert tile is not None and tile.split_k * -(-1024 // tile.columns) == 128
    tile = rules.tile("qkv", 64, 6144, 2048, SMS)
    assert tile is not None and tile.columns == 48


def test_a_tile_is_refused_where_it_cannot_run() -> None:
    assert not fits(Tile(128, 64, 64), "qkv", 64, 1024)
    assert not fits(Tile(64, 64, 64, split_k=4), "qkv", 64, 1024)
    assert not fits(Tile(64, 64, 64, split_k=4), "residual", 64, 896 + 64)
    assert not fits(Tile(64, 64, 64, block_n2=16), "head", 64, 1024)


def test_rows_are_padded_to_whole_tiles() -> None:
    assert [padded(rows) for rows in (1, 16, 17, 64, 65, 128, 129, 1024)] == [16, 16, 64, 64, 128, 128, 256, 1024]
    assert heights(5) == [16] and heights(130) == [16, 64, 128, 256]
    assert all(heights(rows) == sorted({padded(few) for few in range(1, rows + 1)}) for rows in (1, 16, 40, 300))


def test_a_vectors_share_stays_in_registers() -> None:
    assert CUTS.vector("qkv", 4096, 1024) == Vector(rows=4, warps=2)
    for use in USES:
        for out, length in SHAPES:
            cut = CUTS.vector(use, out, length)
            weights = cut.rows * 2 ** (length - 1).bit_length() * (2 if use == "gate_up" else 1)
            assert weights <= 64 * 32 * cut.warps or cut.rows == 1


def test_few_rows_split_their_contexts_and_many_do_not() -> None:
    assert rules.split(1, 8, 128, SMS) == Split(8, tokens=128, warps=8, ahead=True, buffers=1)
    assert [rules.split(rows, 8, 128, SMS).splits for rows in (2, 4, 8, 16, 32, 64)] == [8, 8, 8, 4, 2, 1]
    assert rules.split(16, 8, 128, SMS) == Split(4, tokens=64, warps=4, ahead=True, buffers=3)
    assert rules.split(64, 8, 128, SMS) == Split(1, tokens=64, warps=2, ahead=True, buffers=3)
    assert rules.split(256, 8, 128, SMS) == Split(1, tokens=32, warps=1, ahead=False, buffers=3)
    assert rules.split(64, 8, 256, SMS).tokens == 32


def test_kernels_overlap_where_no_multiplication_of_torchs_stands_between_them() -> None:
    small, large = (6144, 1024), (24576, 4096)
    assert [CUTS.chain_mode(rows, small) for rows in (1, 64, 256)] == [chain.AFTER_WAIT] * 3
    assert [CUTS.chain_mode(rows, large) for rows in (1, 64, 256)] == [chain.AFTER_WAIT, chain.AT_ONCE, chain.OFF]
    assert replace(CUTS, chain=chain.OFF).chain_mode(64, small) == chain.OFF
