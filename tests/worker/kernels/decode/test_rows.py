"""Embedding, residual with norm, and gate, against torch."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.kernels.decode.rows import add, add_reference, embed, gate, gate_reference

EPS = 1e-5
DTYPES = [torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_becomes_its_residual_and_its_normed_row(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    table, norm = torch.randn(50, 96).to(dtype), torch.randn(96).to(dtype)
    residual, normed = torch.zeros(4, 96), torch.zeros(4, 96, dtype=dtype)
    tokens = torch.tensor([3, 49, 3])
    embed(tokens, table, norm, EPS, residual, normed)
    none = torch.empty(0, 3, 96)
    expected, expected_normed = add_reference(none, norm, EPS, table[tokens].float(), dtype)
    assert torch.equal(residual[:3], expected)
    torch.testing.assert_close(normed[:3], expected_normed, atol=2e-3, rtol=2e-3)
    assert not residual[3].any() and not normed[3].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [1, 4])
def test_parts_are_added_to_the_residual_which_is_normed(dtype: torch.dtype, parts: int) -> None:
    torch.manual_seed(parts)
    given = torch.randn(parts, 8, 96).to(torch.float32 if parts > 1 else dtype)
    norm, before = torch.randn(96).to(dtype), torch.randn(8, 96)
    residual, normed = before.clone(), torch.zeros(8, 96, dtype=dtype)
    add(given, 5, norm, EPS, residual, normed)
    expected, expected_normed = add_reference(given[:, :5], norm, EPS, before[:5], dtype)
    torch.testing.assert_close(residual[:5], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(normed[:5], expected_normed, atol=4e-3, rtol=4e-3)
    assert torch.equal(residual[5:], before[5:]) and not normed[5:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [96, 1100])
def test_gate_and_up_become_one(dtype: torch.dtype, inner: int) -> None:
    torch.manual_seed(inner)
    given, out = torch.randn(3, 2 * inner).to(dtype), torch.zeros(5, inner, dtype=dtype)
    gate(given, out)
    torch.testing.assert_close(out[:3], gate_reference(given), atol=2e-3, rtol=2e-3)
    assert not out[3:].any()
