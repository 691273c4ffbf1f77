"""A model with weights drawn at random on its device: no file is read, and only a step's time means anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lockstep_worker.attention.interface import NAME, register_attention
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import make_model
from lockstep_worker.model.support import check_supported


def dummy_network(config: Mapping[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """Build the transformers model of a configuration on the device, with our attention and random weights.

    Args:
        config: what `config.json` would hold, `model_type` included.
        device: where the weights are drawn.
        dtype: theirs.

    Raises:
        UnsupportedModel: such a model cannot be served right.
    """
    register_attention()
    hf_config = AutoConfig.for_model(**config)
    check_supported(hf_config)
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(hf_config, dtype=dtype, attn_implementation=NAME)


def dummy_model(
    config: Mapping[str, Any],
    device: torch.device,
    dtype: torch.dtype,
    *,
    fast_path: bool,
    batch_invariant: bool = False,
) -> Model:
    """Make the model of `dummy_network`, as `model/loader` does of one that it read.

    Raises:
        ConfigError: it cannot be batch-invariant.
    """
    return make_model(
        dummy_network(config, device, dtype),
        end_ids=(),
        device=device,
        tensor_parallel=1,
        fast_path=fast_path,
        batch_invariant=batch_invariant,
    )
