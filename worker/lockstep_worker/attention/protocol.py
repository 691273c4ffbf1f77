"""The seam between a transformers model and an attention backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What a layer asks of its attention beyond causality."""

    scaling: float
    """factor on the scores"""
    sliding_window: int | None = None
    """a token sees itself and the `sliding_window - 1` tokens before it; None sees all"""
    softcap: float | None = None
    """scores become softcap * tanh(scores / softcap); None leaves them"""
    sinks: Tensor | None = None
    """[query heads]: a score a head that takes part in the softmax and brings no value"""


class AttentionStep(Protocol):
    """One forward pass's attention, made anew for every batch, so that what layers share is computed once.

    Shape legend: T packed tokens, H query heads, K KV heads of this rank, D head size.
    """

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, options: AttentionOptions) -> Tensor:
        """Write this step's keys and values to the cache and attend over each sequence's context.

        Args:
            layer: index of the layer.
            q_THD: queries after rotary embedding; any strides.
            k_TKD: keys after rotary embedding; any strides.
            v_TKD: values; any strides.
            options: the layer's own.

        Returns:
            [T, H, D], contiguous.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention over one KV cache."""

    def step(self, batch: PackedBatch) -> AttentionStep:
        """Prepare what all layers of a forward pass share.

        Args:
            batch: the pass's tokens, on the cache's device.
        """
        ...
