"""How attention leaves a transformers model: one function under the name `lockstep` in its `AttentionInterface`.

No mask is registered under that name, so transformers builds none. The run's `AttentionRun` travels as a keyword
argument of the model's call, which every layer hands on unchanged.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AttentionInterface

from lockstep_worker.attention.protocol import AttentionOptions, AttentionRun
from lockstep_worker.errors import UnsupportedModel

NAME = "lockstep"
"""The `attn_implementation` of every model that this engine loads."""


def register_attention() -> None:
    """Make `attn_implementation="lockstep"` known to transformers; a second call changes nothing."""
    AttentionInterface.register(NAME, _attend)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    *,
    lockstep_run: AttentionRun,
    **_: Any,
) -> tuple[Tensor, None]:
    """Translate transformers' call, [1, heads, T, D], into the protocol's, [T, heads, D].

    Raises:
        UnsupportedModel: the layer is not causal, or brings a mask of its own making. The probe at load meets it first.
    """
    if attention_mask is not None:
        raise UnsupportedModel(f"{type(module).__name__} makes its own attention mask")
    if not getattr(module, "is_causal", True):
        raise UnsupportedModel(f"{type(module).__name__} is not causal")
    options = AttentionOptions(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    q_THD, k_TKD, v_TKD = (states[0].transpose(0, 1) for states in (query, key, value))
    return lockstep_run.attend(int(module.layer_idx), q_THD, k_TKD, v_TKD, options).unsqueeze(0), None
