"""The seam between a transformers model and an attention backend.

A backend lives as long as its cache. For each run it plans on the host (`prepare`), from the host's own arrays; then
every layer runs on the device (`attend`), and nothing in a layer asks the host. What a backend needs from run to run
(scratch, split tables, a graph's inputs) it allocates once and keeps. Source of the split: FlashInfer's plan and run.
"""

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


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a model's layers ask of attention on this rank, beside what the cache shows: the same for every layer."""

    num_layers: int
    query_heads: frozenset[int]
    """One number, unless layers differ in it."""
    kv_heads: int
    head_dim: int
    options: frozenset[str]
    """Of `sliding_window`, `softcap` and `sinks` those that some layer asks for."""


class AttentionRun(Protocol):
    """One run's attention, prepared for its batch, so that what layers share is computed once.

    Shape legend: T packed tokens, H query heads, K KV heads of this rank, D head size.
    """

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, options: AttentionOptions) -> Tensor:
        """Write this run's keys and values to the cache and attend over each sequence's context.

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

    def read(self, layer: int, q_THD: Tensor, options: AttentionOptions) -> Tensor:
        """Attend over each sequence's context, this run's own keys and values included: somebody wrote them.

        As `attend` without its first half, for a forward whose kernels write to the cache themselves.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention over one KV cache."""

    name: str
    """In one word, for the log and the metrics."""
    is_replayable: bool
    """Whether a decode may be captured as a CUDA graph: its run plans nothing from a context's length, and costs by
    the length that it finds on the device."""

    def prepare(self, batch: PackedBatch) -> AttentionRun:
        """Plan a run on the host.

        Args:
            batch: the run's tokens; what decides stands in `batch.host`, the tensors are only handed on.
        """
        ...
