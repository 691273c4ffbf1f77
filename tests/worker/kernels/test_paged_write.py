"""A run's keys and values land in their cells, whatever their strides, and nowhere else."""

from __future__ import annotations

import re

import pytest
import torch

from lockstep_worker.kernels.paged_write import paged_write, paged_write_reference
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("kv_heads", "head_dim", "block_size"), [(1, 16, 1), (2, 64, 4), (3, 96, 5)])
def test_tokens_are_written_to_their_cells_and_nothing_else_is(
    kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    cells = torch.randperm(4 * block_size)[: 2 * block_size]
    wide = torch.randn((len(cells), 3, kv_heads, head_dim)).to(dtype)  # as a fused projection of q, k and v
    turned = torch.randn((kv_heads, head_dim, len(cells))).to(dtype)
    before = torch.randn((4, block_size, kv_heads, head_dim)).to(dtype)
    found, expected = ([before.clone(), before.clone()] for _ in range(2))
    for k, v in [(wide[:, 1], wide[:, 2]), (turned.permute(2, 0, 1), wide[:, 0])]:
        paged_write(cells, k, v, *found)
        paged_write_reference(cells, k, v, *expected)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_it_compiles_for_the_gpus_and_moves_16_bytes_at_a_time() -> None:
    pointers = dict.fromkeys(("NEW_KEYS", "NEW_VALUES", "KEYS", "VALUES"), "*bf16")
    strides = dict.fromkeys(("k_token", "k_head", "v_token", "v_head"), "i32")
    constants = {"K": 8, "D": 128, "PADDED_K": 8, "PADDED_D": 128, "k_dim": 1, "v_dim": 1}
    [results] = compile_offline(
        Specialisation(
            "lockstep_worker.kernels.paged_write:paged_write_kernel",
            {"CELLS": "*i64"} | pointers | strides,
            constants,
            capabilities=(HOPPER, BLACKWELL),
            multiples_of_16=tuple(strides),
        )
    )
    for compiled in results:
        assert compiled.ptx.count("ld.global.v4.b32") == compiled.ptx.count("st.global.v4.b32") == 2
        assert not re.search(r"(ld|st)\.global\.b16", compiled.ptx)
