"""A multiplication whose rows' numbers do not depend on the other rows."""

from __future__ import annotations

import re

import pytest
import torch

from lockstep_worker.kernels.fixed_matmul import BLOCK_M, BUFFERS, STEP_BYTES, fixed_matmul, fixed_matmul_reference
from support.kernels.exact_dot import make_dots_exact
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

MOST_SHARED_BYTES = 227 * 1024


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "columns", "length"), [(1, 64, 64), (130, 70, 100), (5, 200, 192), (3, 16400, 24)])
def test_it_multiplies_as_the_reference_does(rows: int, columns: int, length: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(rows, length, dtype=dtype), torch.randn(columns, length, dtype=dtype)
    for bias in (None, torch.randn(columns, dtype=dtype)):
        expected = fixed_matmul_reference(x, w, bias)
        torch.testing.assert_close(fixed_matmul(x, w, bias), expected, atol=1e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_row_is_the_same_bits_alone_and_among_any_others(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    make_dots_exact(monkeypatch)
    torch.manual_seed(0)
    x, w, bias = (torch.randn(shape).to(dtype) for shape in ((200, 150), (90, 150), (90,)))
    together = fixed_matmul(x, w, bias)
    for rows in ([199], [3, 150, 0], list(range(60, 131))):
        assert torch.equal(fixed_matmul(x[rows], w, bias), together[rows])


def test_no_rows_bring_none() -> None:
    assert fixed_matmul(torch.empty(0, 64), torch.empty(8, 64)).shape == (0, 8)


def specialise(columns: int, length: int, element: str, width: int) -> Specialisation:
    return Specialisation(
        "lockstep_worker.kernels.fixed_matmul:fixed_matmul_kernel",
        {"X": f"*{element}", "W": f"*{element}", "OUT": f"*{element}", "M": "i32"},
        {
            "BIAS": None,
            "N": columns,
            "K": length,
            "BLOCK_M": BLOCK_M,
            "BLOCK_N": width,
            "BLOCK_K": STEP_BYTES // (4 if element == "fp32" else 2),
        },
        num_warps=width // 16,
        num_stages=BUFFERS,
    )


def test_it_compiles_for_the_gpus_with_one_instruction_shape_a_weight() -> None:
    results = compile_offline(
        specialise(4096, 14336, "bf16", 64),
        specialise(28672, 4096, "bf16", 128),
        Specialisation(**{**vars(specialise(20001, 896, "fp16", 128)), "capabilities": (HOPPER, BLACKWELL)}),
    )
    for [compiled, *others], width in zip(results, (64, 128, 128), strict=True):
        assert {int(n) for n in re.findall(r"wgmma\.mma_async\S*\.m64n(\d+)k16", compiled.ptx)} == {width}
        for one in (compiled, *others):
            assert "cp.async.cg" in one.ptx, "loads of 16 bytes, pipelined"
            assert one.shared_bytes <= MOST_SHARED_BYTES
