"""What `tiles` computes, in plain torch and float32.

Shape legend: see `tiles`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def plain_reference(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What `plain` computes."""
    return F.linear(x_MK.float(), w_NK.float(), None if bias_N is None else bias_N.float()).to(dtype)


def gated_reference(x_MK: Tensor, w_2IK: Tensor) -> Tensor:
    """What `gated` computes."""
    gate, up = F.linear(x_MK.float(), w_2IK.float()).chunk(2, -1)
    return (F.silu(gate) * up).to(x_MK.dtype)


def partial_reference(x_MK: Tensor, w_NK: Tensor, split_k: int) -> Tensor:
    """What `partial` computes."""
    pairs = zip(x_MK.float().chunk(split_k, 1), w_NK.float().chunk(split_k, 1), strict=True)
    return torch.stack([x @ w.T for x, w in pairs])


def best_reference(x_MK: Tensor, w_VK: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """What `best` computes, for tiles of so many columns; which of equal scores is torch's choice."""
    tiles = F.linear(x_MK.float(), w_VK.float()).split(columns, 1)
    values, ids = zip(*(tile.max(1) for tile in tiles), strict=True)
    starts = torch.arange(len(tiles), device=x_MK.device) * columns
    return torch.stack(values, 1), (torch.stack(ids, 1) + starts).int()
