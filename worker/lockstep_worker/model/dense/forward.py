"""The fast path for any batch: few fused kernels around the large multiplications, which are cuBLAS's or fixed.

A layer is nine kernels: norm, qkv, rotation with the write to the cache, attention, out, norm, gate and up, silu, down.
Nothing here waits for the device or asks it, so a CUDA graph can capture a call.

Shape legend: T packed tokens, n wanted rows, V vocabulary, E hidden size, H query heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.attention.protocol import AttentionOptions, AttentionRun
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels.activation import gated_silu
from lockstep_worker.kernels.fixed_matmul import fixed_matmul
from lockstep_worker.kernels.norm import add_norm, norm
from lockstep_worker.kernels.rope import Rotation, rotate_and_write
from lockstep_worker.model.dense.weights import DenseLayer, DenseWeights


class DenseForward:
    """A dense decoder's forward over its merged weights.

    Rounds where transformers' forward rounds; only the multiplications' own order of summation differs.

    Args:
        weights: the network's.
        kv: the cache that attention reads, in the weights' dtype.
        batch_invariant: compute each row bit for bit the same in any batch; attention must be told the same.
    """

    def __init__(self, weights: DenseWeights, kv: KVCache, *, batch_invariant: bool = False) -> None:
        self._weights = weights
        self._kv = kv
        self._multiply: Callable[..., Tensor] = fixed_matmul if batch_invariant else linear
        self._rotations = [
            Rotation(weights.cos_sin, layer.query_norm, layer.key_norm, weights.eps) for layer in weights.layers
        ]
        self._options = [AttentionOptions(weights.scaling, layer.sliding_window) for layer in weights.layers]

    @torch.inference_mode()
    def __call__(self, batch: PackedBatch, run: AttentionRun) -> Tensor:
        """Write the batch's keys and values to the cache and compute the wanted logits.

        Args:
            batch: on the weights' device.
            run: attention prepared for this batch, over the same cache.

        Returns:
            float32 [n, V]
        """
        return self._multiply(self.hidden(batch, run), self._weights.head).float()

    @torch.inference_mode()
    def hidden(self, batch: PackedBatch, run: AttentionRun) -> Tensor:
        """As a call, but without the head: returns the final norm's output of the wanted rows, [n, E]."""
        weights = self._weights
        eps = weights.eps
        residual_TE = embedding(batch.input_ids, weights.embedding)
        normed_TE = norm(residual_TE, weights.layers[0].input_norm, eps)
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            attended = self._attend(index, normed_TE, batch, run)
            if index == last:  # nothing looks at the other rows any more
                attended, residual_TE = attended[batch.logit_rows], residual_TE[batch.logit_rows]
            normed_TE = add_norm(self._multiply(attended, layer.out), residual_TE, layer.post_norm, eps)
            following = weights.final_norm if index == last else weights.layers[index + 1].input_norm
            normed_TE = add_norm(self._gated_mlp(normed_TE, layer), residual_TE, following, eps)
        return normed_TE

    def _attend(self, index: int, normed_TE: Tensor, batch: PackedBatch, run: AttentionRun) -> Tensor:
        """Compute one layer's attention up to its heads' outputs, [T, H * D]."""
        layer = self._weights.layers[index]
        qkv = self._multiply(normed_TE, layer.qkv, layer.qkv_bias)
        keys, values = self._kv.keys[index], self._kv.values[index]
        q_THD = rotate_and_write(qkv, self._rotations[index], batch.positions, batch.kv_cells, keys, values)
        return run.read(index, q_THD, self._options[index]).flatten(1)

    def _gated_mlp(self, normed_TE: Tensor, layer: DenseLayer) -> Tensor:
        return self._multiply(gated_silu(self._multiply(normed_TE, layer.gate_up)), layer.down)
