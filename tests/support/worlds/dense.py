"""Small dense networks with our attention, and the fast path driven as `Model` is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.attention.interface import NAME, register_attention
from lockstep_worker.attention.protocol import AttentionShape
from lockstep_worker.attention.sdpa import SdpaBackend
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.model.dense.forward import DenseForward
from lockstep_worker.model.dense.recognise import take_weights
from lockstep_worker.model.dense.weights import DenseWeights
from support.data.tiny_models import CONFIGS, SIZES

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

DENSE: dict[str, Callable[[], Any]] = {
    **{name: CONFIGS[name] for name in ("llama", "mistral-window", "qwen2", "qwen3", "qwen3-window")},
    "llama3-rope": lambda: hf.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "yarn": lambda: hf.Qwen3Config(**SIZES, rope_parameters=YARN),
    "linear-rope": lambda: hf.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "wide-heads": lambda: hf.LlamaConfig(**{**SIZES, "num_key_value_heads": 4, "head_dim": 24}),
}
"""Of each kind that the fast path runs, one, a few thousand weights each."""


def build(config: Any, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """Make a network with random weights, norms and biases that attends through the engine."""
    register_attention()
    torch.manual_seed(11)
    network = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=NAME)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return convert(network.eval().requires_grad_(False), dtype, device)


def convert(network: Any, dtype: torch.dtype, device: str) -> Any:
    """Convert the weights and nothing else: as a buffer, a rotary embedding's frequencies stay in float32."""
    for parameter in network.parameters():
        parameter.data = parameter.data.to(device, dtype)
    for buffer in network.buffers():
        buffer.data = buffer.data.to(device)
    return network


def take(network: Any) -> DenseWeights:
    weights = take_weights(network, network.config.max_position_embeddings)
    assert isinstance(weights, DenseWeights), weights
    return weights


class DenseModel:
    """The fast path in `Model`'s clothes, for `GreedyDriver`; attention is the reference's."""

    def __init__(self, network: Any, end_ids: tuple[int, ...] = ()) -> None:
        self.network = network
        self.weights = take(network)
        self.end_ids = end_ids
        self.device = network.device
        self.dtype = network.dtype

    def create_cache(self, num_blocks: int, block_size: int) -> None:
        weights = self.weights
        kv = KVCache(
            num_layers=len(weights.layers),
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        self.kv = kv
        heads = frozenset({weights.query_heads})
        shape = AttentionShape(len(weights.layers), heads, weights.kv_heads, weights.head_dim, frozenset())
        self.attention = SdpaBackend(kv, shape)
        self.fast = DenseForward(weights, kv)

    def forward(self, batch: PackedBatch) -> Tensor:
        return self.fast(batch, self.attention.prepare(batch))

    @torch.inference_mode()
    def forward_by_transformers(self, batch: PackedBatch) -> Tensor:
        """The same batch, over the same cache, through the network's own forward."""
        output = self.network(
            input_ids=batch.input_ids[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            lockstep_run=self.attention.prepare(batch),
        )
        logits: Tensor = output.logits[0]
        return logits.float()
