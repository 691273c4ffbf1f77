"""The random numbers of draws: a pure function of a request's seed, the draw's index and the entry's column.

An entry's noise is the same whichever kernel makes it, in whatever batch and tile, and wherever rounding twice or once
would differ `fma` says which it is.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from triton import knobs

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)
SPREAD = tl.constexpr(0x9E3779B1)
MIX_3 = tl.constexpr(0x7FEB352D)
MIX_4 = tl.constexpr(0x846CA68B)
LN_2 = tl.constexpr(math.log(2))
IS_COMPILED = tl.constexpr(not knobs.runtime.interpret)
TWO_TO_MINUS_32 = tl.constexpr(2.0**-32)
SERIES_BELOW = tl.constexpr(0.125)


@triton.jit
def _mix(x):
    """splitmix64's finaliser, of uint64."""
    x = (x ^ (x >> 30)) * MIX_1
    x = (x ^ (x >> 27)) * MIX_2
    return x ^ (x >> 31)


@triton.jit
def _bits(key, columns):
    """Mix a row's key, uint64, with columns: uint32 each. One column's numbers of all keys take all values alike.

    A draw makes one for each entry of the vocabulary, so all is done in the 32 bits that a GPU multiplies at once.
    Source of the two steps: Wellons, "Prospecting for hash functions", 2018.
    """
    x = columns.to(tl.uint32) * SPREAD + key.to(tl.uint32)
    x = (x ^ (x >> 16)) * MIX_3
    x = (x ^ (x >> 15) ^ (key >> 32).to(tl.uint32)) * MIX_4
    return x ^ (x >> 16)


@triton.jit
def _log_2(x):
    """The logarithm to base 2 by the GPU's own approximation: off by 3e-7 at most, or by that part of it."""
    if IS_COMPILED:
        result = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        result = tl.log2(x)
    return result


@triton.jit
def exponential(bits):
    """Turn uint32 into Exponential(1) numbers, all > 0: float32 -log(1 - u) of u = (bits + 0.5) / 2**32.

    Small ones decide an arg-max. The integer is converted before the half is added, so a small u keeps float32's
    relative precision, and the logarithm is its series in u there. Elsewhere 1 - u comes from the integer's complement,
    so that a u near 1 is as fine. Against float64 the relative error is below 2e-6 everywhere; it is largest behind the
    seam at u = 1/8, where the logarithm is small and its error is not.
    """
    u = (bits.to(tl.float32) + 0.5) * TWO_TO_MINUS_32
    series = 1.0 / 8
    for term in tl.static_range(7, 0, -1):
        series = tl.fma(series, u, 1.0 / term)
    rest = ((0xFFFFFFFF - bits).to(tl.float32) + 0.5) * TWO_TO_MINUS_32
    return tl.where(u < SERIES_BELOW, u * series, _log_2(rest) * -LN_2)


@triton.jit
def noise(seed, index, columns):
    """Independent Exponential(1) numbers, those of `sampling.sampler.exponential_noise`: float32 like `columns`.

    Args:
        seed: int64.
        index: int64, the draw's.
        columns: int32.
    """
    return exponential(_bits(_mix(seed.to(tl.uint64) + GOLDEN * index.to(tl.uint64)), columns))


@triton.jit
def shift(temperature, seed, index, columns):
    """What a draw adds to logits: float32 like `columns`, rounded, so that no product is left to be fused."""
    return tl.fma(temperature * -LN_2, _log_2(noise(seed, index, columns)), 0.0)
