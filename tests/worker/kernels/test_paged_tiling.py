"""The cut into programs covers every token, fills the GPU, and stays in the room for partial results."""

from __future__ import annotations

import inspect

import pytest

from lockstep_worker.kernels.paged_tiling import (
    MOST_ROWS,
    MOST_SPLITS,
    Heads,
    Tiling,
    chunk_queries,
    chunk_tiling,
    decode_tiling,
    fixed_tiling,
)

H200 = 132
MODELS = [
    Heads(kv_heads, group, head_bytes, H200)
    for kv_heads in (1, 2, 8, 40)
    for group in (1, 4, 7, 71, 128)
    for head_bytes in (32, 256, 1024)
]


def tilings(heads: Heads) -> list[tuple[int, Tiling]]:
    """Decodes and chunks of many sizes, with how many assignments they have."""
    decodes = [(batch, decode_tiling(batch, heads)) for batch in (1, 2, 3, 31, 33, 64, 256, 1024)]
    chunks = []
    for tokens in (2, 17, 500, 8192):
        assignments = -(-tokens // chunk_queries(tokens, heads))
        chunks.append((assignments, chunk_tiling(assignments, tokens, heads)))
    return [*decodes, *chunks, (1, fixed_tiling(heads))]


@pytest.mark.parametrize("heads", MODELS, ids=str)
def test_every_tiling_is_one_that_the_kernel_takes(heads: Heads) -> None:
    for assignments, tiling in tilings(heads):
        assert tiling.queries >= 1 and tiling.queries * heads.group <= tiling.rows <= MOST_ROWS
        assert tiling.rows >= 16 and tiling.keys >= 16
        assert all(size & (size - 1) == 0 for size in (tiling.rows, tiling.keys, tiling.warps))
        assert 1 <= tiling.splits <= MOST_SPLITS
        assert tiling.partial_rows(assignments, heads.kv_heads) <= heads.most_partial_rows


@pytest.mark.parametrize(("batch", "splits"), [(1, 32), (2, 16), (8, 4), (16, 2), (32, 1), (33, 1), (256, 1)])
def test_contexts_are_split_until_the_gpu_is_full(batch: int, splits: int) -> None:
    assert decode_tiling(batch, Heads(8, 4, 256, H200)).splits == splits


def test_a_long_prompt_takes_large_tiles_and_a_short_one_splits_its_context() -> None:
    heads = Heads(8, 4, 256, H200)
    assert chunk_queries(8192, heads) == MOST_ROWS // 4
    assert chunk_tiling(256, 8192, heads).splits == 1
    assert chunk_queries(20, heads) == 16
    assert chunk_tiling(2, 20, heads).splits == 16


def test_a_decode_is_cut_by_its_batch_and_heads_alone() -> None:
    assert list(inspect.signature(decode_tiling).parameters) == ["sequences", "heads"]
