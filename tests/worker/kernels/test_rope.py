from itertools import chain
from typing import Any

import pytest
import torch

from lockstep_worker.kernels.rope import Rotation, rotate_and_write, rotate_and_write_reference
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, POSITIONS, BLOCKS, BLOCK = 5, 40, 6, 4


def inputs(heads: int, kv_heads: int, size: int, dtype: torch.dtype, has_norms: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(heads * size)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

    angles = torch.arange(POSITIONS)[:, None] / 100.0 ** (torch.arange(size // 2) / (size // 2))
    rotation = Rotation(
        cos_sin=torch.cat((1.3 * angles.cos(), 1.3 * angles.sin()), dim=-1).to(DEVICE),
        query_norm=random(size) if has_norms else None,
        key_norm=random(size) if has_norms else None,
        eps=1e-6,
    )
    return {
        "qkv": random(TOKENS, (heads + 2 * kv_heads) * size),
        "rotation": rotation,
        "positions_T": torch.tensor([0, 39, 7, 7, 20], device=DEVICE),
        "cells_T": torch.tensor([23, 0, 9, 10, 4], device=DEVICE),
        "keys": torch.zeros(BLOCKS, BLOCK, kv_heads, size, dtype=dtype, device=DEVICE),
        "values": torch.zeros(BLOCKS, BLOCK, kv_heads, size, dtype=dtype, device=DEVICE),
    }


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 2, 8), (1, 1, 64), (8, 8, 80), (7, 1, 96), (12, 3, 128), (5, 5, 256)]
)
def test_it_equals_transformers_steps(
    heads: int, kv_heads: int, size: int, dtype: torch.dtype, has_norms: bool
) -> None:
    ours, theirs = (inputs(heads, kv_heads, size, dtype, has_norms) for _ in range(2))
    queries, expected = rotate_and_write(**ours), rotate_and_write_reference(**theirs)
    assert queries.shape == (TOKENS, heads, size)
    rtol, atol = (3e-3, 4e-3) if dtype == torch.float16 else (1e-5, 1e-5)
    torch.testing.assert_close(queries, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(ours["keys"], theirs["keys"], rtol=rtol, atol=atol)
    assert torch.equal(ours["values"], theirs["values"])
    assert ours["values"].flatten(0, 1).any(-1).any(-1).sum() == TOKENS


def test_each_product_is_rounded_as_in_transformers() -> None:
    """Without norms every step is exact but for its rounding: not one bit may differ."""
    ours, theirs = (inputs(8, 2, 64, torch.float16, False) for _ in range(2))
    assert torch.equal(rotate_and_write(**ours), rotate_and_write_reference(**theirs))
    assert torch.equal(ours["keys"], theirs["keys"])


def test_normed_heads_are_rounded_before_their_weight_multiplies_them() -> None:
    """Only the mean's order of summation may turn a bit here and there; one rounding less turns many."""
    ours, theirs = (inputs(8, 2, 64, torch.float16, True) for _ in range(2))
    assert (rotate_and_write(**ours) != rotate_and_write_reference(**theirs)).float().mean() < 0.01


def test_the_reference_is_transformers_own_rotation() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb  # noqa: PLC0415  slow

    one = inputs(4, 2, 64, torch.float16, False)
    queries = rotate_and_write_reference(**one)
    cos, sin = one["rotation"].cos_sin[one["positions_T"]].half().chunk(2, dim=-1)
    cos, sin = (torch.cat((part, part), dim=-1) for part in (cos, sin))
    heads = one["qkv"].view(TOKENS, -1, 64)
    expected, keys = apply_rotary_pos_emb(heads[:, :4], heads[:, 4:6], cos, sin)
    assert torch.equal(queries, expected)
    assert torch.equal(one["keys"].flatten(0, 1)[one["cells_T"]], keys)
    assert torch.equal(one["values"].flatten(0, 1)[one["cells_T"]], heads[:, 6:])


def test_it_compiles_for_gpus() -> None:
    pointers = dict.fromkeys(("QKV", "OUT", "KEYS", "VALUES"), "*bf16")
    types = {**pointers, "COS_SIN": "*fp32", "POSITIONS": "*i64", "CELLS": "*i64", "eps": "fp32"}
    norms = dict.fromkeys(("QUERY_NORM", "KEY_NORM"), "*bf16")
    shape: dict[str, Any] = {"QUERY_HEADS": 32, "KV_HEADS": 8, "BLOCK_HEADS": 8}
    kernel = "lockstep_worker.kernels.rope:_rotate_kernel"
    whole = {**shape, "HALF": 64, "BLOCK_HALF": 64, "NORMS": True}
    padded = {**shape, "HALF": 40, "BLOCK_HALF": 64, "NORMS": False, **dict.fromkeys(norms)}
    exact = {"enable_fp_fusion": False}
    results = compile_offline(
        Specialisation(kernel, {**types, **norms}, whole, options=exact, capabilities=(HOPPER, BLACKWELL)),
        Specialisation(kernel, types, padded, options=exact),
    )
    assert [len(one) for one in results] == [2, 1]
    assert not any("fma.rn.bf16" in one.ptx for one in chain(*results)), "products are rounded before they are added"


@pytest.mark.gpu
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(16, 8, 128), (32, 8, 64), (28, 4, 128), (16, 8, 96)])
def test_bfloat16_heads_of_real_sizes_are_right_on_a_gpu(heads: int, kv_heads: int, size: int, has_norms: bool) -> None:
    ours, theirs = (inputs(heads, kv_heads, size, torch.bfloat16, has_norms) for _ in range(2))
    queries, expected = rotate_and_write(**ours), rotate_and_write_reference(**theirs)
    for mine, other in ((queries, expected), (ours["keys"], theirs["keys"])):
        assert (mine != other).float().mean() < 0.01
        torch.testing.assert_close(mine, other, rtol=1.6e-2, atol=3e-2)
    assert torch.equal(ours["values"], theirs["values"])
