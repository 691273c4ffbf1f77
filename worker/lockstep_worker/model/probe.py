"""One forward pass of a freshly loaded model that looks at the calls its attention gets.

A configuration cannot say everything; what counts is that each layer calls our attention exactly once, with keys and
values of one shape. The shapes found here size the KV cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.attention.protocol import AttentionOptions, AttentionShape
from lockstep_worker.errors import UnsupportedModel

PROBE_TOKENS = 3
OPTIONS = ("sliding_window", "softcap", "sinks")
"""Those of `AttentionOptions` that a backend may not know."""


class _ProbeRun:
    """`AttentionRun` that notes what each layer asks for and attends to nothing."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.query_heads: set[int] = set()
        self.cached: set[torch.Size] = set()
        """Shapes of keys and values."""
        self.options: set[str] = set()

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, options: AttentionOptions) -> Tensor:
        """See `AttentionRun.attend`."""
        self.layers.append(layer)
        self.query_heads.add(q_THD.shape[1])
        self.cached |= {k_TKD.shape, v_TKD.shape}
        self.options |= {name for name in OPTIONS if getattr(options, name) is not None}
        return torch.zeros(*q_THD.shape[:2], v_TKD.shape[2], dtype=q_THD.dtype, device=q_THD.device)


@torch.inference_mode()
def probe_attention(network: torch.nn.Module, num_layers: int, device: torch.device) -> AttentionShape:
    """Run the model once and return what its layers ask of attention, and so what its KV cache must hold.

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
    if run.layers != list(range(num_layers)):
        raise UnsupportedModel(
            f"of its {num_layers} layers these attend through the engine, in this order: {run.layers}"
        )
    if len(run.cached) != 1:
        raise UnsupportedModel(f"keys and values differ in shape across layers: {sorted(map(tuple, run.cached))}")
    _, kv_heads, head_dim = run.cached.pop()
    return AttentionShape(num_layers, frozenset(run.query_heads), kv_heads, head_dim, frozenset(run.options))
