"""The KV cache's device tensors. Which block belongs to whom is the block pool's business."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of all layers, in blocks.

    Zeroed at the start: a block's unused tail is multiplied by an attention weight of zero, and NaN times zero is NaN.
    Behind the pool's blocks lies one more, the spare one, for what runs and is nobody's.

    Shape legend: L layers, N blocks, B tokens a block, H KV heads of this rank, D head size.

    Args:
        num_layers: L.
        num_blocks: N.
        block_size: B.
        kv_heads: H.
        head_dim: D.
        dtype: of both tensors.
        device: where they live.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_blocks + 1, block_size, kv_heads, head_dim)
        self.spare_block = num_blocks
        self.block_size = block_size
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        """L tensors [N+1, B, H, D]"""
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        """L tensors [N+1, B, H, D]"""

    def write(self, layer: int, cells_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store T tokens' keys and values in one layer.

        Args:
            layer: index of the layer.
            cells_T: int64, block * block_size + offset.
            k_THD: keys, in this cache's dtype; any strides.
            v_THD: values, the same.
        """
        self.keys[layer].flatten(0, 1).index_copy_(0, cells_T, k_THD)
        self.values[layer].flatten(0, 1).index_copy_(0, cells_T, v_THD)
