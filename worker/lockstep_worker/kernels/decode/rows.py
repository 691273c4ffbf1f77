"""What stands between the multiplications of a decode step: one program a row, the residual in float32.

The residual never leaves float32, and each row is normed where it is made, so that the multiplication behind it finds
its operand ready: `embed` begins a step, `add` ends a layer's half. `gate` is there for a multiplication that torch
does, since only ours apply the activation themselves.

Shape legend: B rows, M rows that scratch has, S parts of a sum, E hidden size, V vocabulary, I inner size of the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from lockstep_worker.kernels.chain import chained, early, ordinary, wait


@triton.jit
def _put_normed(normed, weight, x, row, column, E: tl.constexpr, eps):
    """Store x / rms(x) * weight; the rounding in between is the one that transformers makes."""
    x = (x * tl.rsqrt(tl.sum(x * x, 0) / E + eps)).to(normed.dtype.element_ty).to(tl.float32)
    tl.store(normed + row * E + column, (x * weight).to(normed.dtype.element_ty), mask=column < E)


@triton.jit
def embed_kernel(
    tokens, table, residual, norm, normed, eps, E: tl.constexpr, E_PADDED: tl.constexpr, PDL: tl.constexpr
):
    """One program a row: see `embed`. First of its chain, so it has nothing to wait for."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, E_PADDED)
    early(PDL)
    wait(PDL)
    weight = tl.load(norm + column, mask=column < E, other=0.0).to(tl.float32)
    x = tl.load(table + tl.load(tokens + row) * E + column, mask=column < E, other=0.0).to(tl.float32)
    tl.store(residual + row * E + column, x, mask=column < E)
    _put_normed(normed, weight, x, row, column, E, eps)


def embed(
    tokens_B: Tensor, table_VE: Tensor, norm_E: Tensor, eps: float, residual_ME: Tensor, normed_ME: Tensor, pdl: int = 0
) -> None:
    """Look each token up: its row is the residual, and normed the first layer's input.

    Args:
        tokens_B: int64.
        table_VE: the embedding.
        norm_E: weight of the first norm.
        eps: of the norm.
        residual_ME: float32, the first B rows are written.
        normed_ME: of the embedding's dtype, the first B rows are written.
        pdl: see `chain`; this kernel is the first of its chain.
    """
    size = table_VE.shape[1]
    embed_kernel[(tokens_B.shape[0],)](
        tokens_B,
        table_VE,
        residual_ME,
        norm_E,
        normed_ME,
        eps,
        E=size,
        E_PADDED=triton.next_power_of_2(size),
        num_warps=_warps(size),
        **ordinary(pdl),
    )


@triton.jit(do_not_specialize=["M"])
def add_kernel(
    parts,
    residual,
    norm,
    normed,
    eps,
    M,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row: see `add`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, E_PADDED)
    early(PDL)
    weight = tl.load(norm + column, mask=column < E, other=0.0).to(tl.float32)
    wait(PDL)
    x = tl.load(residual + row * E + column, mask=column < E, other=0.0)
    for part in tl.static_range(PARTS):
        x += tl.load(parts + (part * M + row) * E + column, mask=column < E, other=0.0).to(tl.float32)
    tl.store(residual + row * E + column, x, mask=column < E)
    _put_normed(normed, weight, x, row, column, E, eps)


def add(
    parts_SME: Tensor, rows: int, norm_E: Tensor, eps: float, residual_ME: Tensor, normed_ME: Tensor, pdl: int = 0
) -> None:
    """Add a projection's parts to the residual, always in the same order, and norm it for the next projection.

    Args:
        parts_SME: float32, or the weights' dtype.
        rows: B, how many are computed.
        norm_E: weight of the next norm.
        eps: of the norm.
        residual_ME: float32, in place.
        normed_ME: the normed rows.
        pdl: see `chain`.
    """
    parts, height, size = parts_SME.shape
    add_kernel[(rows,)](
        parts_SME,
        residual_ME,
        norm_E,
        normed_ME,
        eps,
        height,
        E=size,
        E_PADDED=triton.next_power_of_2(size),
        PARTS=parts,
        num_warps=_warps(size),
        **chained(pdl),
    )


def add_reference(
    parts_SME: Tensor, norm_E: Tensor, eps: float, residual_ME: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The residual and the normed rows that `add` leaves; with no parts what `embed` leaves of an embedding's rows."""
    residual = residual_ME + parts_SME.float().sum(0)
    normed = F.rms_norm(residual, residual.shape[-1:], eps=eps).to(dtype)
    return residual, (normed.float() * norm_E.float()).to(dtype)


@triton.jit
def gate_kernel(gate_up, out, INNER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program a row and block of columns: see `gate`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    early(PDL)
    wait(PDL)
    gate = tl.load(gate_up + row * 2 * INNER + column, mask=column < INNER, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * INNER + INNER + column, mask=column < INNER, other=0.0).to(tl.float32)
    tl.store(
        out + row * INNER + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=column < INNER
    )


def gate(gate_up_B2I: Tensor, out_MI: Tensor, pdl: int = 0) -> None:
    """Write silu(gate) * up to the first B rows of out."""
    rows, width = gate_up_B2I.shape
    block = 1024
    gate_kernel[(rows, triton.cdiv(width // 2, block))](
        gate_up_B2I, out_MI, INNER=width // 2, BLOCK=block, **chained(pdl)
    )


def gate_reference(gate_up_B2I: Tensor) -> Tensor:
    """What `gate` computes."""
    gate, up = gate_up_B2I.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up_B2I.dtype)


def _warps(size: int) -> int:
    return 4 if size <= 1024 else 8
