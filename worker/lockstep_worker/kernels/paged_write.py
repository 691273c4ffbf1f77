"""Writes a run's keys and values of one layer to their cells of the paged cache, both in one kernel.

Shape legend: T packed tokens, K KV heads, D head size, N blocks of the cache, B tokens a block.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def paged_write_kernel(
    CELLS,
    NEW_KEYS,
    NEW_VALUES,
    KEYS,
    VALUES,
    k_token,
    k_head,
    k_dim,
    v_token,
    v_head,
    v_dim,
    K: tl.constexpr,
    D: tl.constexpr,
    PADDED_K: tl.constexpr,
    PADDED_D: tl.constexpr,
):
    """Write one token; the grid is [T]."""
    token = tl.program_id(0).to(tl.int64)
    head, d = tl.arange(0, PADDED_K)[:, None], tl.arange(0, PADDED_D)[None, :]
    is_own = (head < K) & (d < D)
    into = tl.load(CELLS + token) * (K * D) + head * D + d
    k = tl.load(NEW_KEYS + token * k_token + head * k_head + d * k_dim, mask=is_own)
    v = tl.load(NEW_VALUES + token * v_token + head * v_head + d * v_dim, mask=is_own)
    tl.store(KEYS + into, k, mask=is_own)
    tl.store(VALUES + into, v, mask=is_own)


def paged_write(cells_T: Tensor, k_TKD: Tensor, v_TKD: Tensor, keys_NBKD: Tensor, values_NBKD: Tensor) -> None:
    """Store T tokens' keys and values.

    Args:
        cells_T: int64, block * B + offset.
        k_TKD: keys in the cache's dtype; any strides.
        v_TKD: values, the same.
        keys_NBKD: one layer's keys, contiguous.
        values_NBKD: the same of its values.
    """
    kv_heads, head_dim = keys_NBKD.shape[2:]
    assert keys_NBKD.is_contiguous() and values_NBKD.is_contiguous()
    assert k_TKD.shape == v_TKD.shape == (len(cells_T), kv_heads, head_dim)
    paged_write_kernel[(len(cells_T),)](
        cells_T,
        k_TKD,
        v_TKD,
        keys_NBKD,
        values_NBKD,
        *k_TKD.stride(),
        *v_TKD.stride(),
        K=kv_heads,
        D=head_dim,
        PADDED_K=triton.next_power_of_2(kv_heads),
        PADDED_D=triton.next_power_of_2(head_dim),
    )


def paged_write_reference(
    cells_T: Tensor, k_TKD: Tensor, v_TKD: Tensor, keys_NBKD: Tensor, values_NBKD: Tensor
) -> None:
    """As `paged_write`, in plain torch."""
    keys_NBKD.flatten(0, 1)[cells_T] = k_TKD
    values_NBKD.flatten(0, 1)[cells_T] = v_TKD
