"""Partial results are merged as one softmax over all of them; that contexts come out right is `test_paged`'s."""

from __future__ import annotations

import torch
import triton

from lockstep_worker.kernels.paged_arguments import PagedSequences
from lockstep_worker.kernels.paged_join import join_partials
from lockstep_worker.kernels.paged_tiling import MOST_SPLITS, Tiling
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

KV_HEADS, GROUP, HEAD_DIM, SPLITS = 1, 2, 24, 3


def test_splits_are_weighted_by_their_largest_score_and_a_sink_joins_once() -> None:
    torch.manual_seed(0)
    tiling = Tiling(queries=1, rows=16, keys=16, splits=SPLITS, warps=4, depth=2)
    sums = torch.randn((tiling.partial_rows(1, KV_HEADS), HEAD_DIM))
    marks = torch.stack((4.0 * torch.randn(len(sums)), 1.0 + torch.rand(len(sums))), dim=1)
    ones = torch.ones(1, dtype=torch.int32)
    sequences = PagedSequences(ones[None], ones, torch.tensor([0, 1], dtype=torch.int32), None)
    sinks = torch.tensor([1.5, -40.0])
    out = torch.empty((1, GROUP, HEAD_DIM))
    join_partials(sums, marks, out, sequences, sinks, KV_HEADS, tiling)
    for row in range(GROUP):
        parts = [split * tiling.rows + row for split in range(SPLITS)]
        scale = marks[parts, 0].double().exp2()
        total = (scale * marks[parts, 1]).sum() + sinks[row].double().exp()
        expected = (scale[:, None] * sums[parts]).sum(0) / total
        torch.testing.assert_close(out[0, row], expected.float(), atol=1e-6, rtol=1e-5)


def test_it_compiles_for_the_gpus() -> None:
    pointers = {"SUMS": "*fp32", "MARKS": "*fp32", "OUT": "*bf16", "SINKS": "*bf16"}
    indices = dict.fromkeys(("CONTEXTS", "QUERY_START", "ASSIGNMENTS"), "*i32")
    constants = {"K": 8, "G": 4, "D": 96, "PADDED_D": triton.next_power_of_2(96), "ROWS": 16, "MOST": MOST_SPLITS}
    one = Specialisation(
        "lockstep_worker.kernels.paged_join:paged_join_kernel",
        pointers | indices | {"splits": "i32"},
        constants,
        num_warps=2,
        capabilities=(HOPPER, BLACKWELL),
    )
    [results] = compile_offline(one)
    assert [compiled.capability for compiled in results] == [HOPPER, BLACKWELL]
