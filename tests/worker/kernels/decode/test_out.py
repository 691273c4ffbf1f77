"""A row's output projection against torch, with sizes that fit neither rows a program nor powers of two."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.kernels.decode.out import out, out_reference
from lockstep_worker.kernels.decode.vector import Vector


@pytest.mark.parametrize(("heads", "dim", "splits"), [(4, 32, 1), (3, 24, 4), (2, 64, 8)])
def test_out_joins_the_splits_and_adds_to_the_residual(heads: int, dim: int, splits: int) -> None:
    torch.manual_seed(100)
    w = (torch.randn(100, heads * dim) / (heads * dim) ** 0.5).half()
    parts, weights = torch.randn(splits, heads, dim).half(), torch.randn(splits, heads) * 3
    weights[0] = -1e30 if splits > 1 else 0.0  # a split without a token
    before = torch.randn(100)
    residual = before.clone()
    out(w, parts, weights, residual, Vector(rows=8, warps=4))
    torch.testing.assert_close(residual, out_reference(w, parts, weights, before), atol=1e-4, rtol=1e-4)
