"""The gate of a gated MLP: silu(gate) * up over one multiplication's output that holds both.

The rounding is transformers': silu in float32, rounded to the dtype, then the product. Source of the gate: Shazeer,
"GLU Variants Improve Transformer", 2020.

Shape legend: T rows, I inner size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import silu

BLOCK = 1024
"""Columns a program: eight elements of each half a thread."""


def gated_silu(gate_up: Tensor) -> Tensor:
    """Multiply the second half of each row by silu of the first.

    Args:
        gate_up: [T, 2 * I]: gate, then up.

    Returns:
        [T, I]
    """
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.is_contiguous()
    out_TI = gate_up.new_empty(rows, size)
    _gated_silu_kernel[(rows, triton.cdiv(size, BLOCK))](gate_up, out_TI, size, BLOCK_I=BLOCK, num_warps=4)
    return out_TI


def gated_silu_reference(gate_up: Tensor) -> Tensor:
    """As `gated_silu`, in plain torch and in transformers' own steps."""
    first, second = torch.chunk(gate_up, 2, dim=-1)
    return silu(first) * second


@triton.jit
def _gated_silu_kernel(GATE_UP, OUT, size, BLOCK_I: tl.constexpr):
    """Part of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside = column < size
    at = GATE_UP + row * 2 * size + column
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + size, mask=inside, other=0.0).to(tl.float32)
    opened = (first / (1.0 + tl.exp(-first))).to(OUT.dtype.element_ty).to(tl.float32)
    tl.store(OUT + row * size + column, (opened * second).to(OUT.dtype.element_ty), mask=inside)
