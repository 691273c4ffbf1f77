"""A decode step of a single row: vectors in place of tiles, five kernels a layer.

A vector times a weight is all reading, so each kernel fetches its weights while the one before still runs, and norms,
activation and residual cost no kernel. Attention always is split; the output projection joins the splits.

Shape legend: X queries, keys and values side by side, E hidden size, I inner size of the MLP, H query heads, D head
size, S splits, V vocabulary, P programs of the head.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels.decode import rows, vector
from lockstep_worker.kernels.decode.attention import attend
from lockstep_worker.kernels.decode.join import Parts
from lockstep_worker.kernels.decode.out import out
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.kernels.draw import Candidates, DrawInput
from lockstep_worker.model.dense.decode_input import StepInput, heads_of
from lockstep_worker.model.dense.routes.cuts import Cuts
from lockstep_worker.model.dense.routes.uses import Use
from lockstep_worker.model.dense.weights import DenseLayer, DenseWeights


class RowStep:
    """Steps of one row, and the scratch that they need, at fixed addresses. Args are those of `BatchStep`."""

    def __init__(self, weights: DenseWeights, cache: KVCache, cuts: Cuts) -> None:
        self._weights, self._cache, self._cuts = weights, cache, cuts
        self._heads = [heads_of(weights, layer) for layer in weights.layers]
        self._split = cuts.split(1, weights.kv_heads, weights.head_dim)
        layer = weights.layers[0]
        self._pdl = cuts.chain_mode(1, layer.gate_up.shape)
        size, inner = layer.down.shape
        splits, heads, vocabulary = self._split.splits, weights.query_heads, weights.head.shape[0]

        def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=weights.embedding.device)

        self._residual_1E = scratch(1, size)
        self._normed_1E = scratch(1, size, dtype=weights.embedding.dtype)
        self._qkv_1X = scratch(1, layer.qkv.shape[0])
        self._parts = Parts(
            scratch(1, splits, heads, weights.head_dim, dtype=weights.embedding.dtype),
            scratch(1, splits, heads),
            scratch(1, weights.kv_heads, dtype=torch.int32),
        )
        self._gated_I = scratch(inner)
        programs = triton.cdiv(vocabulary, self._cut("head", weights.head).rows)
        self._highs_1P, self._lows_1P = scratch(1, programs), scratch(1, programs)
        self._ids_1P = scratch(1, programs, dtype=torch.int32)

    def _cut(self, use: Use, weight: Tensor) -> Vector:
        return self._cuts.vector(use, *weight.shape)

    def logits(self, step: StepInput) -> Tensor:
        """The next token's logits, float32 [1, V], in memory of their own."""
        self._run(step)
        weights, head = self._weights, self._weights.head
        out_1V = torch.empty(1, head.shape[0], dtype=torch.float32, device=head.device)
        residual, norm, cut = self._residual_1E[0], weights.final_norm, self._cut("head", head)
        vector.normed(head, residual, norm, weights.eps, None, out_1V[0], cut, self._pdl)
        return out_1V

    def best(self, step: StepInput, draw: DrawInput | None) -> Candidates:
        """The best of each of the head's P programs, in scratch; see `DecodeStep.best`."""
        self._run(step)
        weights, head = self._weights, self._weights.head
        found = Candidates(self._highs_1P, None if draw is None else self._lows_1P, self._ids_1P)
        residual, norm, cut = self._residual_1E[0], weights.final_norm, self._cut("head", head)
        vector.normed_best(head, residual, norm, weights.eps, draw, found, cut, self._pdl)
        return found

    def _run(self, step: StepInput) -> None:
        """All layers; leaves the residual."""
        weights, residual = self._weights, self._residual_1E[0]
        first = weights.layers[0].input_norm
        rows.embed(step.tokens, weights.embedding, first, weights.eps, self._residual_1E, self._normed_1E, self._pdl)
        for index, layer in enumerate(weights.layers):
            self._attend(index, layer, step)
            attended_SHD, weights_SH = self._parts.attended_BSHD[0], self._parts.weights_BSH[0]
            out(layer.out, attended_SHD, weights_SH, residual, self._cut("residual", layer.out), self._pdl)
            cut = self._cut("gate_up", layer.gate_up)
            vector.normed_gated(layer.gate_up, residual, layer.post_norm, weights.eps, self._gated_I, cut, self._pdl)
            vector.down(layer.down, self._gated_I, residual, self._cut("residual", layer.down), self._pdl)

    def _attend(self, index: int, layer: DenseLayer, step: StepInput) -> None:
        weights, cut = self._weights, self._cut("qkv", layer.qkv)
        residual, qkv = self._residual_1E[0], self._qkv_1X[0]
        vector.normed(layer.qkv, residual, layer.input_norm, weights.eps, layer.qkv_bias, qkv, cut, self._pdl)
        attend(
            self._qkv_1X,
            layer.query_norm,
            layer.key_norm,
            weights.cos_sin,
            self._cache.keys[index],
            self._cache.values[index],
            step.block_tables,
            step.positions,
            None,
            self._parts,
            self._heads[index],
            self._split,
            self._pdl,
        )
