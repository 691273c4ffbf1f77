"""A decode step of many rows: multiplications in tiles, and each row's residual and norm in one program.

Seven kernels a layer: tiles, attention, tiles, residual, tiles, tiles, residual. Where torch's own multiplication is
faster it takes the tiles' place. Rows beyond the batch up to whole tiles are scratch: they are computed and belong to
nobody.

Shape legend: B rows, R rows padded to whole tiles, M the most of R, X queries, keys and values side by side, E hidden
size, I inner size of the MLP, H query heads, D head size, V vocabulary, T tiles of the head. `parts` and `splits` are
flat, since their shape is each route's own.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels import chain
from lockstep_worker.kernels.decode import rows, tiles
from lockstep_worker.kernels.decode.attention import Split, attend
from lockstep_worker.kernels.decode.join import Parts
from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.draw import Candidates, DrawInput
from lockstep_worker.model.dense.decode_input import StepInput, heads_of
from lockstep_worker.model.dense.routes.cuts import Cuts
from lockstep_worker.model.dense.routes.uses import Use, heights, padded
from lockstep_worker.model.dense.weights import DenseLayer, DenseWeights


class BatchStep:
    """Steps of any number of rows, and the scratch that they need, at fixed addresses.

    Args:
        weights: the network.
        cache: its keys and values.
        max_rows: the most rows of a step.
        cuts: how kernels are cut.
    """

    def __init__(self, weights: DenseWeights, cache: KVCache, max_rows: int, cuts: Cuts) -> None:
        self._weights, self._cache, self._cuts = weights, cache, cuts
        self._pdl = chain.OFF
        self._heads = [heads_of(weights, layer) for layer in weights.layers]
        most, layer = padded(max_rows), weights.layers[0]
        size, inner = layer.down.shape
        heads, dim = weights.query_heads, weights.head_dim

        def scratch(*shape: int, dtype: torch.dtype = weights.embedding.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=weights.embedding.device)

        self._residual_ME = scratch(most, size, dtype=torch.float32)
        self._normed_ME = scratch(most, size)
        self._qkv_MX = scratch(most, layer.qkv.shape[0])
        self._attended_MHD = scratch(most, heads, dim)
        self._projected_ME = scratch(most, size)
        self._gate_up_M2I = scratch(most, 2 * inner)
        self._gated_MI = scratch(most, inner)
        counts = heights(max_rows)
        self._parts = scratch(size * max(self._most_parts(count, layer) for count in counts), dtype=torch.float32)
        self._splits = scratch(heads * dim * max(self._split_rows(count) for count in range(1, max_rows + 1)))
        self._split_weights = scratch(self._splits.numel() // dim, dtype=torch.float32)
        self._arrived_BK = scratch(max_rows, weights.kv_heads, dtype=torch.int32)
        most_best = max(count * self._head_tiles(count, drawn) for count in counts for drawn in (False, True))
        self._highs, self._lows = scratch(most_best, dtype=torch.float32), scratch(most_best, dtype=torch.float32)
        self._ids = scratch(most_best, dtype=torch.int32)

    def _most_parts(self, padded_rows: int, layer: DenseLayer) -> int:
        routes = [self._route("residual", padded_rows, weight) for weight in (layer.out, layer.down)]
        return padded_rows * max(tile.split_k if tile else 0 for tile in routes)

    def _split_rows(self, rows: int) -> int:
        splits = self._attention(rows).splits
        return rows * splits if splits > 1 else 0

    def _head_tiles(self, padded_rows: int, drawn: bool) -> int:
        return triton.cdiv(self._weights.head.shape[0], self._head(padded_rows, drawn).columns)

    def _route(self, use: Use, padded_rows: int, weight: Tensor) -> Tile | None:
        return self._cuts.tile(use, padded_rows, *weight.shape)

    def _head(self, padded_rows: int, drawn: bool) -> Tile:
        tile = self._route("drawn_head" if drawn else "head", padded_rows, self._weights.head)
        assert tile is not None, "the head always runs in tiles"
        return tile

    def _attention(self, rows: int) -> Split:
        return self._cuts.split(rows, self._weights.kv_heads, self._weights.head_dim)

    def logits(self, step: StepInput) -> Tensor:
        """The next token's logits, float32 [B, V], in memory of their own."""
        x_RE = self._run(step)
        out_BV = torch.empty(step.rows, self._weights.head.shape[0], dtype=torch.float32, device=x_RE.device)
        tiles.plain(x_RE, self._weights.head, None, out_BV, self._head(x_RE.shape[0], drawn=False), self._pdl)
        return out_BV

    def best(self, step: StepInput, draw: DrawInput | None) -> Candidates:
        """The best of each of the head's T tiles, in scratch; see `DecodeStep.best`."""
        x_RE = self._run(step)
        height, drawn = x_RE.shape[0], draw is not None
        tile, shape = self._head(height, drawn), (step.rows, self._head_tiles(height, drawn))
        highs_BT, lows_BT, ids_BT = (
            flat[: shape[0] * shape[1]].view(shape) for flat in (self._highs, self._lows, self._ids)
        )
        found = Candidates(highs_BT, None if draw is None else lows_BT, ids_BT)
        tiles.best(x_RE, self._weights.head, draw, found, tile, self._pdl)
        return found

    def _run(self, step: StepInput) -> Tensor:
        """All layers; returns the last norm's rows [R, E]."""
        weights, layers = self._weights, self._weights.layers
        self._pdl = self._cuts.chain_mode(step.rows, layers[0].gate_up.shape)
        norm = layers[0].input_norm
        rows.embed(step.tokens, weights.embedding, norm, weights.eps, self._residual_ME, self._normed_ME, self._pdl)
        for index, layer in enumerate(layers):
            self._project(layer, step.rows)
            self._attend(index, layer, step)
            self._add(self._attended_MHD.flatten(1), layer.out, layer.post_norm, step.rows)
            self._gate(layer, step.rows)
            norm = layers[index + 1].input_norm if index + 1 < len(layers) else weights.final_norm
            self._add(self._gated_MI, layer.down, norm, step.rows)
        return self._normed_ME[: padded(step.rows)]

    def _project(self, layer: DenseLayer, count: int) -> None:
        """Queries, keys and values."""
        height = padded(count)
        tile = self._route("qkv", height, layer.qkv)
        if tile is None:
            multiply(self._normed_ME[:count], layer.qkv, layer.qkv_bias, self._qkv_MX[:count])
        else:
            out = self._qkv_MX[:height]
            tiles.plain(self._normed_ME[:height], layer.qkv, layer.qkv_bias, out, tile, self._pdl)

    def _attend(self, index: int, layer: DenseLayer, step: StepInput) -> None:
        split, heads = self._attention(step.rows), self._heads[index]
        shape, parts = (step.rows, split.splits, heads.query_heads), None
        if split.splits > 1:
            weights_BSH = self._split_weights[: step.rows * split.splits * heads.query_heads].view(shape)
            attended_BSHD = self._splits[: weights_BSH.numel() * heads.head_dim].view(*shape, heads.head_dim)
            parts = Parts(attended_BSHD, weights_BSH, self._arrived_BK)
        attend(
            self._qkv_MX,
            layer.query_norm,
            layer.key_norm,
            self._weights.cos_sin,
            self._cache.keys[index],
            self._cache.values[index],
            step.block_tables,
            step.positions,
            self._attended_MHD,
            parts,
            heads,
            split,
            self._pdl,
        )

    def _gate(self, layer: DenseLayer, count: int) -> None:
        """The MLP up to its inner size."""
        height = padded(count)
        tile = self._route("gate_up", height, layer.gate_up)
        if tile is None:
            multiply(self._normed_ME[:count], layer.gate_up, None, self._gate_up_M2I[:count])
            rows.gate(self._gate_up_M2I[:count], self._gated_MI, self._pdl)
        else:
            tiles.gated(self._normed_ME[:height], layer.gate_up, self._gated_MI[:height], tile, self._pdl)

    def _add(self, x_MK: Tensor, weight: Tensor, norm: Tensor, count: int) -> None:
        """A projection back to the hidden size, added to the residual, which is normed for what comes next."""
        height = padded(count)
        tile = self._route("residual", height, weight)
        if tile is None:
            multiply(x_MK[:count], weight, None, self._projected_ME[:count])
            parts_SRE = self._projected_ME.unsqueeze(0)
        else:
            shape = (tile.split_k, height, weight.shape[0])
            parts_SRE = self._parts[: shape[0] * shape[1] * shape[2]].view(shape)
            tiles.partial(x_MK[:height], weight, parts_SRE, tile, self._pdl)
        rows.add(parts_SRE, count, norm, self._weights.eps, self._residual_ME, self._normed_ME, self._pdl)


def multiply(x_BK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, out_BN: Tensor) -> None:
    """Torch's own multiplication."""
    if bias_N is None:
        torch.mm(x_BK, weight_NK.t(), out=out_BN)
    else:
        torch.addmm(bias_N, x_BK, weight_NK.t(), out=out_BN)
