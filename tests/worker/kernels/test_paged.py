"""Paged attention equals its reference: for every option, head size, block size and way to cut the work."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
import torch
import triton
from torch import Tensor

from lockstep_worker.kernels.paged import paged_attention
from lockstep_worker.kernels.paged_arguments import Partials, Scoring
from lockstep_worker.kernels.paged_reference import paged_attention_reference
from lockstep_worker.kernels.paged_tiling import Heads, Tiling, chunk_tiling, decode_tiling, fixed_tiling
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline
from support.kernels.paged import PagedCase

DECODES = [(1, 1), (1, 16), (1, 17), (1, 43)]
"""Contexts at the borders of tiles of 16 keys, and one that no split covers alone."""
CHUNKS = [(9, 9), (1, 20), (8, 40)]
PLAIN = Scoring(scaling=0.3)
MOST_SHARED_BYTES = 227 * 1024


def attend(case: PagedCase, scoring: Scoring = PLAIN, *, queries: int = 1, splits: int = 1, keys: int = 16) -> Tensor:
    rows = max(16, triton.next_power_of_2(queries * case.group))
    tiling = Tiling(queries, rows, keys, splits, warps=4, depth=2)
    sequences = case.sequences(queries)
    partials = Partials.allocate(
        tiling.partial_rows(sequences.num_assignments, case.kv_heads), case.head_dim, case.q.device
    )
    out = torch.full_like(case.q, float("nan"))
    paged_attention(case.q, case.keys, case.values, out, sequences, scoring, tiling, partials)
    return out


def check(case: PagedCase, scoring: Scoring = PLAIN, *, queries: int = 1, splits: int = 1, keys: int = 16) -> None:
    found = attend(case, scoring, queries=queries, splits=splits, keys=keys)
    expected = paged_attention_reference(case.q, case.keys, case.values, case.sequences(queries), scoring)
    tolerance = 2e-5 if case.dtype == torch.float32 else 3e-3
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


OPTIONS = {
    "none": PLAIN,
    "window": replace(PLAIN, sliding_window=7),
    "window of one": replace(PLAIN, sliding_window=1),
    "window beyond a tile": replace(PLAIN, sliding_window=19),
    "softcap": replace(PLAIN, softcap=2.0),
    "sinks": replace(PLAIN, sinks=torch.tensor([0.5, -1.0])),
    "all": Scoring(0.3, 18, 1.5, torch.tensor([0.5, -1.0])),
}


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("option", OPTIONS)
def test_decodes_attend_with_every_option(option: str, splits: int) -> None:
    check(PagedCase(DECODES), OPTIONS[option], splits=splits)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("option", OPTIONS)
def test_chunks_and_single_tokens_attend_with_every_option(option: str, splits: int) -> None:
    check(PagedCase(CHUNKS), OPTIONS[option], queries=8, splits=splits)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 17])
def test_any_number_of_query_heads_shares_a_kv_head(group: int, queries: int) -> None:
    check(PagedCase([(queries, 21)], kv_heads=2, group=group), queries=queries)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("group", [2, 7])
def test_splits_of_several_heads_are_joined_into_their_own(group: int, queries: int) -> None:
    sinks = torch.linspace(-1.0, 2.0, 2 * group)
    check(PagedCase([(queries, 35)], kv_heads=2, group=group), replace(PLAIN, sinks=sinks), queries=queries, splits=3)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("head_dim", [24, 64, 80, 96, 128, 256])
def test_heads_of_any_size_attend(head_dim: int, dtype: torch.dtype, queries: int) -> None:
    case = PagedCase([(queries, 20)], head_dim=head_dim, dtype=dtype)
    check(case, Scoring(head_dim**-0.5), queries=queries, splits=2 if dtype == torch.float32 else 1)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_blocks_of_any_size_attend_and_tiles_need_not_divide_them(block_size: int) -> None:
    check(PagedCase(DECODES, block_size=block_size), keys=32)
    check(PagedCase([(6, 41)], block_size=block_size), queries=4)


@pytest.mark.parametrize("option", ["none", "window", "sinks"])
@pytest.mark.parametrize("splits", [1, 2])
def test_a_row_without_context_becomes_zeros(splits: int, option: str) -> None:
    case = PagedCase([(1, 0), (1, 9)])
    out = attend(case, OPTIONS[option], splits=splits)
    assert not out[0].any()
    assert out[1].isfinite().all() and out[1].all()


def test_splits_change_nothing_beyond_rounding() -> None:
    case = PagedCase([(1, 43)], group=1)
    whole = attend(case)
    for splits in (2, 3, 8):
        torch.testing.assert_close(attend(case, splits=splits), whole, atol=1e-6, rtol=1e-5)


def test_queries_of_any_strides_attend() -> None:
    case = PagedCase(CHUNKS)
    expected = attend(case, queries=4)
    wide = torch.full((case.q.shape[1], case.q.shape[0], 2 * case.head_dim), float("nan"))
    wide[:, :, ::2] = case.q.transpose(0, 1)
    case.q = wide.transpose(0, 1)[:, :, ::2]
    sequences, tiling = case.sequences(4), Tiling(4, 16, 16, 1, warps=4, depth=2)
    out = torch.empty(case.q.shape)
    paged_attention(case.q, case.keys, case.values, out, sequences, PLAIN, tiling, Partials.allocate(0, 16, out.device))
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("sequence", [0, 1])
def test_only_assigned_tokens_are_written(sequence: int, splits: int) -> None:
    case = PagedCase([(3, 9), (1, 12)])
    sequences = replace(case.sequences(4), assignments=torch.tensor([[sequence, 0]], dtype=torch.int32))
    out = torch.full_like(case.q, 7.0)
    tiling = Tiling(4, 16, 16, splits, warps=4, depth=2)
    partials = Partials.allocate(tiling.partial_rows(1, 1), 16, out.device)
    paged_attention(case.q, case.keys, case.values, out, sequences, PLAIN, tiling, partials)
    is_written = (out != 7.0).all(dim=(1, 2))
    assert is_written.tolist() == [sequence == 0] * 3 + [sequence == 1]
    assert (out[~is_written] == 7.0).all()


H200 = 132
HEADS = Heads(kv_heads=8, group=4, head_bytes=256, processors=H200)


def specialise(tiling: Tiling, element: str, head_dim: int, **constants: object) -> Specialisation:
    """Compile for a model of 8 KV heads of 4 query heads each; an argument that is not a constant is there."""
    pointers = dict.fromkeys(("Q", "KEYS", "VALUES", "OUT"), f"*{element}")
    indices = dict.fromkeys(("TABLES", "CONTEXTS", "QUERY_START"), "*i32")
    numbers = dict.fromkeys(("splits", "table_stride", "q_token", "q_head"), "i32")
    optional = {"SUMS": "*fp32", "MARKS": "*fp32", "ASSIGNMENTS": "*i32", "SINKS": f"*{element}"}
    plain: dict[str, object] = {
        "K": 8,
        "G": 4,
        "D": head_dim,
        "PADDED_D": triton.next_power_of_2(head_dim),
        "PAGE": 16,
        "BLOCK_Q": tiling.queries,
        "ROWS": tiling.rows,
        "TILE": tiling.keys,
        "WINDOW": 0,
        "SOFTCAP": 0.0,
        "IS_FIXED": tiling.is_fixed,
        "q_dim": 1,
    }
    signature = pointers | indices | numbers | {"scale": "fp32"}
    signature |= {name: kind for name, kind in optional.items() if name not in constants}
    return Specialisation(
        "lockstep_worker.kernels.paged:paged_attention_kernel",
        signature,
        plain | constants,
        num_warps=tiling.warps,
        num_stages=tiling.depth,
        multiples_of_16=("q_token", "q_head"),
    )


def test_it_compiles_for_the_gpus_and_loads_tiles_ahead() -> None:
    whole = {"SUMS": None, "MARKS": None}
    large_heads = replace(HEADS, head_bytes=512)
    chunk = specialise(chunk_tiling(256, 8192, HEADS), "bf16", 128, **whole, SINKS=None)
    results = compile_offline(
        specialise(decode_tiling(64, HEADS), "bf16", 128, **whole, ASSIGNMENTS=None, SINKS=None),
        replace(chunk, capabilities=(HOPPER, BLACKWELL)),
        specialise(chunk_tiling(1, 5, HEADS), "fp16", 96, WINDOW=128, SOFTCAP=50.0),
        specialise(chunk_tiling(256, 8192, large_heads), "bf16", 256, **whole, SINKS=None),
        specialise(fixed_tiling(HEADS), "bf16", 128, **whole, SINKS=None),
    )
    for compiled in chain.from_iterable(results):
        assert "cp.async.cg" in compiled.ptx, "loads of 16 bytes, pipelined"
        assert compiled.shared_bytes <= MOST_SHARED_BYTES
    [decodes], [chunks, _], *_ = results
    assert "mma.sync" in decodes.ptx and "wgmma.mma_async" in chunks.ptx
    assert 5 * decodes.shared_bytes <= MOST_SHARED_BYTES, "five programs a processor hide each other's waits"
