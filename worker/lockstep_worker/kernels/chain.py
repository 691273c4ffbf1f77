"""Kernels that overlap: a chain's next one starts while the one before it still runs (PDL, see below).

A CUDA graph of many small kernels loses a microsecond or two between each two of them. With programmatic dependent
launch (PDL) a kernel is started early, fetches what cannot change (weights, older cache blocks) and only then waits for
its predecessor's results. What holds for every kernel of a chain:

- It calls `early` first and `wait` once, before its first load of what an earlier kernel of the chain writes and before
  its own first store. Trivial kernels wait too: a kernel is over only when its predecessor is, so that waiting for one
  is waiting for all before it.
- Before `wait` it loads nothing that a kernel of the chain writes. Tokens, positions and block tables are written
  before the chain starts: its first kernel has an ordinary edge (`ordinary`), so everything before it is complete.
- `wait` stands before a loop that Triton pipelines, never inside: the pipeliner moves loads to before the loop.
- Two kernels must fit on a multiprocessor together, or the second cannot start early.
- With PDL off the same kernels compute the same bits.

A kernel of torch's own (a cuBLAS multiplication) in the chain is correct and overlaps with nothing.

The wait is written here with a memory clobber, which Triton's own `gdc_wait` lacks. Source: CUDA's programming guide
("programmatic dependent launch"), Triton's `language.extra.cuda.gdc`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

OFF, AT_ONCE, AFTER_WAIT = 0, 1, 2
"""When a kernel lets its successor start: never early; as soon as it starts itself; once its own wait is over."""


@triton.jit
def _start_next():
    tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def early(PDL: tl.constexpr):
    """First line of a kernel: let the successor start."""
    if PDL == 1:
        _start_next()


@triton.jit
def wait(PDL: tl.constexpr):
    """From here on all that earlier kernels wrote is there."""
    if PDL > 0:
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; // $0", "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1
        )
    if PDL == 2:
        _start_next()


@triton.jit
def fetch_to_cache(starts, BYTES: tl.constexpr, COUNT: tl.constexpr):
    """Ask the L2 cache for memory that is read after the wait; nobody waits for it.

    Args:
        starts: COUNT pointers, aligned to 16 bytes; COUNT is a power of two and at most the program's threads.
        BYTES: behind each, a multiple of 16.
        COUNT: of `starts`. Only as many threads ask: others hold copies of the same pointers.
    """
    tl.inline_asm_elementwise(
        "{ .reg .pred asks; .reg .b32 thread; mov.u32 thread, %tid.x; setp.lt.u32 asks, thread, $3;"
        " @asks cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }",
        "=r,l,r,r",
        [starts.to(tl.int64), BYTES, COUNT],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def chained(pdl: int) -> dict[str, Any]:
    """Keywords that run a kernel in a chain behind another; `pdl` is one of `OFF`, `AT_ONCE`, `AFTER_WAIT`."""
    return {"PDL": pdl, "launch_pdl": True} if pdl else {"PDL": OFF}


def ordinary(pdl: int) -> dict[str, Any]:
    """Keywords of a chain's first kernel: it starts when all before it is over, and lets its successor start early."""
    return {"PDL": pdl}
