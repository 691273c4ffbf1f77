from typing import Any

import pytest
import torch

from lockstep_worker.kernels.norm import add_norm, add_norm_reference, norm, norm_reference
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16]
SIZES = [1, 32, 80, 1024, 5120, 9000]


ROUNDINGS: dict[torch.dtype, dict[str, Any]] = {torch.float32: {}, torch.float16: {"rtol": 2e-3, "atol": 1e-5}}
"""The mean's order of summation may turn a rounding, the weight's product rounds once more."""


def random_rows(rows: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, size, generator=generator)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_normed_as_transformers_norms_them(size: int, dtype: torch.dtype) -> None:
    x, weight = random_rows(3, size, dtype), random_rows(1, size, dtype, seed=1)[0]
    torch.testing.assert_close(norm(x, weight, 1e-3), norm_reference(x, weight, 1e-3), **ROUNDINGS[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_the_residual_is_the_rounded_sum_and_the_norm_is_of_it(size: int, dtype: torch.dtype) -> None:
    x, residual = random_rows(3, size, dtype), random_rows(3, size, dtype, seed=2)
    weight, expected_residual = random_rows(1, size, dtype, seed=1)[0], residual.clone()
    expected = add_norm_reference(x, expected_residual, weight, 1e-6)
    torch.testing.assert_close(add_norm(x, residual, weight, 1e-6), expected, **ROUNDINGS[dtype])
    assert torch.equal(residual, expected_residual)


def test_a_row_of_zeros_stays_finite_and_no_rows_are_no_rows() -> None:
    weight = torch.ones(32, device=DEVICE)
    assert torch.equal(norm(torch.zeros(2, 32, device=DEVICE), weight, 1e-6), torch.zeros(2, 32, device=DEVICE))
    none = torch.zeros(0, 32, device=DEVICE)
    assert add_norm(none, none.clone(), weight, 1e-6).shape == (0, 32)


def test_the_sum_and_the_normed_row_are_rounded_where_transformers_rounds_them() -> None:
    """Only the mean's order of summation may turn a bit here and there; one rounding less turns many."""
    x, residual, other = (random_rows(4, 512, torch.float16, seed) for seed in (0, 2, 2))
    weight = random_rows(1, 512, torch.float16, seed=1)[0]
    ours, expected = add_norm(x, residual, weight, 1e-6), add_norm_reference(x, other, weight, 1e-6)
    assert (ours != expected).float().mean() < 0.01


def test_the_reference_is_transformers_own_norm() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm  # noqa: PLC0415  slow

    x, weight = random_rows(3, 64, torch.float16), random_rows(1, 64, torch.float16, seed=1)[0]
    module = LlamaRMSNorm(64, eps=1e-3)
    module.weight.data = weight
    assert torch.equal(norm_reference(x, weight, 1e-3), module(x))


def test_it_compiles_for_gpus() -> None:
    types = {"X": "*bf16", "RESIDUAL": "*bf16", "WEIGHT": "*bf16", "OUT": "*bf16", "eps": "fp32", "size": "i32"}
    alone = {name: kind for name, kind in types.items() if name != "RESIDUAL"}
    kernel = "lockstep_worker.kernels.norm:_norm_kernel"
    both = (HOPPER, BLACKWELL)
    results = compile_offline(
        Specialisation(kernel, types, {"ADDS": True, "BLOCK_E": 4096}, num_warps=8, capabilities=both),
        Specialisation(kernel, types, {"ADDS": True, "BLOCK_E": 16384}, num_warps=16),
        Specialisation(kernel, alone, {"RESIDUAL": None, "ADDS": False, "BLOCK_E": 1024}, num_warps=2),
    )
    assert [len(one) for one in results] == [2, 1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1024, 2560, 4096, 5120, 16384])
def test_bfloat16_rows_of_real_sizes_are_right_on_a_gpu(size: int) -> None:
    x, residual = random_rows(300, size, torch.bfloat16), random_rows(300, size, torch.bfloat16, seed=2)
    weight, expected_residual = random_rows(1, size, torch.bfloat16, seed=1)[0], residual.clone()
    expected = add_norm_reference(x, expected_residual, weight, 1e-6)
    ours = add_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, expected_residual)
    assert (ours != expected).float().mean() < 0.01
    torch.testing.assert_close(ours, expected, rtol=1.6e-2, atol=1e-5)
