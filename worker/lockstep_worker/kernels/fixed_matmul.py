"""x @ W.T where a row's numbers are the same whatever other rows there are: one tile and one order of the sum a weight.

A library picks a kernel by the number of rows, and each adds up in an order of its own. Here rows come in tiles of one
height, from one row to thousands, and a program adds over K from its begin to its end in steps of one length. So each
element is made by the same instructions of the same shape, and the rows of other requests are other rows of the tile.
What follows from W's shape, as the width of a tile, is free to follow from it.

Programs that follow one another have the same columns, so that W is read from memory once.

Source of the idea: He et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025.

Shape legend: M rows, N columns of the result, K length of the sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

BLOCK_M = 128
"""A decode of few rows waits for W and not for the tile's empty rows; a long prompt wants high tiles."""
STEP_BYTES = 128
"""Of one row of an operand that one step of the sum takes."""
WIDE_FROM = 16384
"""Columns from which on tiles of 128 fill a GPU; below, they would leave most of it idle."""
BUFFERS = 4
"""Steps whose operands are in shared memory at once."""


@triton.jit(do_not_specialize=["M"])
def fixed_matmul_kernel(
    X,
    W,
    BIAS,
    OUT,
    M,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile a program; the grid is [tiles of rows, tiles of columns]. `M` is not specialised: all M run one code."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    is_row, is_column = (row < M)[:, None], (column < N)[None, :]
    x_at = X + row[:, None].to(tl.int64) * K + k[None, :]
    w_at = W + column[None, :].to(tl.int64) * K + k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        x_mask, w_mask = is_row, is_column
        if K % BLOCK_K > 0:
            x_mask, w_mask = is_row & (start + k < K)[None, :], is_column & (start + k < K)[:, None]
        x = tl.load(x_at + start, mask=x_mask, other=0.0)
        w = tl.load(w_at + start, mask=w_mask, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    if BIAS is not None:
        acc += tl.load(BIAS + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    out_at = OUT + row[:, None].to(tl.int64) * N + column[None, :]
    tl.store(out_at, acc.to(OUT.dtype.element_ty), mask=is_row & is_column)


def fixed_matmul(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Multiply as `torch.nn.functional.linear` does; returns [M, N] in x's dtype.

    Args:
        x_MK: contiguous; any M.
        w_NK: contiguous, of x's dtype.
        bias_N: added before the result is rounded, or None.
    """
    rows, length = x_MK.shape
    columns = len(w_NK)
    assert w_NK.shape[1] == length and x_MK.is_contiguous() and w_NK.is_contiguous()
    out_MN = torch.empty((rows, columns), dtype=x_MK.dtype, device=x_MK.device)
    width = 128 if columns >= WIDE_FROM else 64
    fixed_matmul_kernel[(triton.cdiv(rows, BLOCK_M), triton.cdiv(columns, width))](
        x_MK,
        w_NK,
        bias_N,
        out_MN,
        rows,
        N=columns,
        K=length,
        BLOCK_M=BLOCK_M,
        BLOCK_N=width,
        BLOCK_K=STEP_BYTES // x_MK.element_size(),
        num_warps=width // 16,
        num_stages=BUFFERS,
    )
    return out_MN


def fixed_matmul_reference(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """As `fixed_matmul` but for the order of the sum, in plain torch."""
    bias = None if bias_N is None else bias_N.float()
    return linear(x_MK.float(), w_NK.float(), bias).to(x_MK.dtype)
