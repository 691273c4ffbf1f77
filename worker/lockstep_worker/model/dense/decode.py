"""A step of decodes over `DenseWeights`: each row brings one token, and few kernels a layer compute it.

One row and many rows are computed by different kernels (`decode_one`, `decode_batch`): the same numbers but for
rounding, so tokens may differ where the two best are close. Every step begins from its rows' tokens, positions and
block tables and ends with logits, or with each tile's best; nothing is carried from step to step but the cache, so
that prefills, other steps and any order of rows may come between. All scratch is allocated once: a CUDA graph that
captured a step may be replayed as long as the step lives. Steps share the scratch, so they must follow one another.

Shape legend: B rows, V vocabulary, T tiles of the head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.kernels import chain
from lockstep_worker.kernels.decode.attention import GROUP
from lockstep_worker.kernels.draw import Candidates, DrawInput
from lockstep_worker.model.dense.decode_batch import BatchStep
from lockstep_worker.model.dense.decode_input import StepInput
from lockstep_worker.model.dense.decode_one import RowStep
from lockstep_worker.model.dense.routes.cuts import Cuts
from lockstep_worker.model.dense.weights import DenseWeights

INTERPRETED_MULTIPROCESSORS = 8
"""Where there is no GPU, programs run one after another: few of them are fastest."""

HOPPER = (9, 0)
"""A compute capability: tensor memory access and the chain of kernels came with it."""
SHARED_BYTES = 200 << 10
"""Of a block: what the largest tile takes. GPUs for workstations have half of it."""
CUT_FOR_BYTES = 2
"""The tiles of larger numbers do not fit into shared memory."""


class DecodeStep:
    """Runs decode steps.

    Args:
        weights: the network; `serves` tells whether it fits.
        cache: keys and values of its layers.
        max_rows: the most rows of a step.
        pdl: whether kernels start before the one before them is over; the bits are the same.
        cuts: how kernels are cut; None is `cuts_for` the weights' device.
    """

    def __init__(
        self, weights: DenseWeights, cache: KVCache, max_rows: int, *, pdl: bool, cuts: Cuts | None = None
    ) -> None:
        cuts = cuts or cuts_for(weights.embedding.device)
        if not pdl:
            cuts = replace(cuts, chain=chain.OFF)
        self._one = RowStep(weights, cache, cuts)
        self._many = BatchStep(weights, cache, max_rows, cuts)

    def logits(self, step: StepInput) -> Tensor:
        """Compute the rows' newest tokens, write their keys and values, and return float32 logits [B, V].

        The logits are in memory of their own.
        """
        return self._of(step).logits(step)

    def best(self, step: StepInput, draw: DrawInput | None = None) -> Candidates:
        """As `logits`, but find only the best of each of the head's T tiles.

        Args:
            step: the rows.
            draw: what their draws depend on, written before the step; None takes the arg-max.

        Returns:
            [B, T], as `kernels.draw.draw_tiles` finds them in the logits; scratch, valid until the next step.
        """
        return self._of(step).best(step, draw)

    def _of(self, step: StepInput) -> RowStep | BatchStep:
        return self._one if step.rows == 1 else self._many


def cuts_for(device: torch.device) -> Cuts:
    """The cuts for a device."""
    if device.type != "cuda":
        return Cuts(INTERPRETED_MULTIPROCESSORS)
    return Cuts(torch.cuda.get_device_properties(device).multi_processor_count)


def serves(weights: DenseWeights) -> bool:
    """Whether these kernels can run the network where it is: 16 bytes are TMA's unit, 16 query heads the tile's."""
    layer = weights.layers[0]
    lengths = (weight.shape[1] * weight.element_size() for weight in (layer.qkv, layer.out, layer.down))
    return (
        all(length % 16 == 0 for length in lengths)
        and weights.query_heads <= GROUP.value * weights.kv_heads
        and weights.head_dim % 2 == 0
        and weights.head_dim <= 256
        and (weights.embedding.device.type != "cuda" or _have_room(weights.embedding))
    )


def _have_room(weight: Tensor) -> bool:
    """Whether a GPU has what the kernels take, and its shared memory the tiles of a weight's numbers."""
    gpu = torch.cuda.get_device_properties(weight.device)
    shared: int = gpu.shared_memory_per_block_optin  # type: ignore[attr-defined]
    has_tiles = weight.element_size() <= CUT_FOR_BYTES and shared >= SHARED_BYTES
    return has_tiles and (gpu.major, gpu.minor) >= HOPPER
