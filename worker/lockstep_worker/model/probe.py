"""One forward pass of a freshly loaded model that looks at the calls its attention gets.

A configuration cannot say everything; what counts is that each layer calls our attention exactly once, with keys and
values of one shape. The shapes found here size the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep_worker.attention.protocol import AttentionOptions
from lockstep_worker.errors import UnsupportedModel

PROBE_TOKENS = 3


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one rank's KV cache must hold for a token."""

    num_layers: int
    kv_heads: int
    head_dim: int


class _ProbeRun:
    """`AttentionRun` that notes the shapes of keys and values and attends to nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, torch.Size, torch.Size]] = []

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, options: AttentionOptions) -> Tensor:
        """See `AttentionRun.attend`."""
        self.seen.append((layer, k_TKD.shape, v_TKD.shape))
        return torch.zeros(*q_THD.shape[:2], v_TKD.shape[2], dtype=q_THD.dtype, device=q_THD.device)


@torch.inference_mode()
def probe_cache_shape(network: torch.nn.Module, num_layers: int, device: torch.device) -> CacheShape:
    """Run the model once and return what its KV cache must hold.

    Collective under tensor parallelism: every rank calls it.

    Raises:
        UnsupportedModel: some layer does not attend exactly once, layers differ, or logits cannot be picked.
    """
    run = _ProbeRun()
    ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.int64, device=device)
    positions = torch.arange(PROBE_TOKENS, device=device)[None]
    rows = positions[0, -1:]
    output = network(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=rows, lockstep_run=run)
    if output.logits.shape[:2] != (1, 1):
        raise UnsupportedModel(f"of {PROBE_TOKENS} tokens it cannot give the logits of one only")
    layers = [layer for layer, _, _ in run.seen]
    if layers != list(range(num_layers)):
        raise UnsupportedModel(f"of its {num_layers} layers these attend through the engine, in this order: {layers}")
    shapes = {shape for _, k_shape, v_shape in run.seen for shape in (k_shape, v_shape)}
    if len(shapes) != 1:
        raise UnsupportedModel(f"keys and values differ in shape across layers: {sorted(map(tuple, shapes))}")
    _, kv_heads, head_dim = shapes.pop()
    return CacheShape(num_layers, kv_heads, head_dim)
