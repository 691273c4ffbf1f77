"""Which networks the fast path takes, what it takes from them, and that it leaves them running."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from lockstep_worker.attention.protocol import AttentionOptions
from lockstep_worker.model.dense.recognise import take_weights
from support.data.tiny_models import CONFIGS, SIZES, VOCAB
from support.worlds.dense import DENSE, build, take

IDS = torch.arange(12)[None] % VOCAB
PARTIAL = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "partial_rotary_factor": 0.5}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        name: (CONFIGS[name], "is none of LlamaForCausalLM, MistralForCausalLM")
        for name in ("gemma2", "gemma3", "granite", "olmo2", "phi3", "gpt_oss", "qwen3_moe")
    },
    "cohere": (lambda: hf.CohereConfig(**SIZES), "CohereForCausalLM is none of"),
    "output bias": (lambda: hf.LlamaConfig(**SIZES, attention_bias=True), "layer 0 has a bias on its output"),
    "MLP bias": (lambda: hf.LlamaConfig(**SIZES, mlp_bias=True), "layer 0 has a bias on its output or MLP"),
    "activation": (lambda: hf.LlamaConfig(**SIZES, hidden_act="gelu"), "activation is GELUActivation, not silu"),
    "partial rotary": (
        lambda: hf.Qwen3Config(**SIZES, rope_parameters={**PARTIAL, "original_max_position_embeddings": 64}),
        "turns 4 of a head's 8 dimensions",
    ),
    "dynamic rope": (lambda: hf.LlamaConfig(**SIZES, rope_parameters=DYNAMIC), "embedding is of type dynamic"),
}


def change_epsilon(network: Any) -> None:
    network.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2


def drop_a_bias(network: Any) -> None:
    network.model.layers[2].self_attn.k_proj.bias = None


def replace_a_linear(network: Any) -> None:
    class Scaled(torch.nn.Linear):
        pass

    network.model.layers[1].mlp.down_proj = Scaled(48, 32, bias=False)


def add_a_norm(network: Any) -> None:
    network.model.layers[0].pre_feedforward_layernorm = torch.nn.LayerNorm(32)


def mix_dtypes(network: Any) -> None:
    network.model.norm.half()


def bias_the_head(network: Any) -> None:
    network.lm_head.bias = torch.nn.Parameter(torch.zeros(VOCAB))


def norm_in_one_layer(network: Any) -> None:
    attention = network.model.layers[1].self_attn
    attention.q_norm, attention.k_norm = (copy.deepcopy(network.model.norm) for _ in range(2))


CHANGED: list[tuple[Callable[[Any], None], str]] = [
    (change_epsilon, "its norms differ in epsilon: 1e-06, 0.01"),
    (drop_a_bias, "layer 2 has a bias on some of its query, key and value projections only"),
    (replace_a_linear, "layer 1 has a Scaled where a Linear is expected"),
    (add_a_norm, "layer 0 has the weights input_layernorm, mlp, post_attention_layernorm, pre_feedforward_layernorm"),
    (mix_dtypes, "its weights are of several dtypes or on several devices"),
    (bias_the_head, "its head has a bias"),
    (norm_in_one_layer, "only some of its layers norm queries and keys"),
]


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_of_another_kind_is_refused_with_its_reason(name: str) -> None:
    config, reason = REFUSED[name]
    answer = take_weights(build(config()), 16)
    assert isinstance(answer, str) and reason in answer


@pytest.mark.parametrize(("change", "reason"), CHANGED)
def test_a_known_class_with_other_modules_is_refused(change: Callable[[Any], None], reason: str) -> None:
    network = build(DENSE["qwen2"]())
    change(network)
    answer = take_weights(network, 16)
    assert isinstance(answer, str) and reason in answer


def test_a_class_of_the_same_name_from_elsewhere_is_refused() -> None:
    network = build(DENSE["llama"]())
    network.__class__ = type("LlamaForCausalLM", (hf.LlamaForCausalLM,), {"__module__": __name__})
    answer = take_weights(network, 16)
    assert isinstance(answer, str) and answer.startswith("LlamaForCausalLM is none of")


def test_a_split_network_is_refused() -> None:
    answer = take_weights(build(DENSE["llama"]()), 16, tensor_parallel=2)
    assert answer == "its weights are split over 2 ranks"


@pytest.mark.parametrize("name", DENSE)
def test_shapes_and_windows_are_the_network_s(name: str) -> None:
    network = build(DENSE[name]())
    asked = ask_each_layer(network)
    weights = take(network)
    config = network.config
    size = config.head_dim
    assert (weights.query_heads, weights.kv_heads, weights.head_dim) == (4, config.num_key_value_heads, size)
    assert [AttentionOptions(weights.scaling, layer.sliding_window) for layer in weights.layers] == asked
    for layer in weights.layers:
        assert layer.qkv.shape == ((4 + 2 * config.num_key_value_heads) * size, 32)
        assert layer.gate_up.shape == (96, 32)
        assert (layer.qkv_bias is not None) == (name == "qwen2")
        assert (layer.query_norm is not None) == (layer.key_norm is not None) == (config.model_type == "qwen3")
    tied = weights.head.data_ptr() == weights.embedding.data_ptr()
    assert tied == config.tie_word_embeddings


def ask_each_layer(network: Any) -> list[AttentionOptions]:
    """What the network itself asks of attention."""
    asked = []

    class Run:
        def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
            asked.append(options)
            return torch.zeros_like(q).contiguous()

    network(input_ids=IDS, use_cache=False, lockstep_run=Run())
    return asked


@pytest.mark.parametrize("name", DENSE)
def test_the_table_holds_the_network_s_own_angles(name: str) -> None:
    network = build(DENSE[name]())
    table = take(network).cos_sin
    positions = torch.tensor([[0, 1, 63, 64, 255]])
    cos, sin = network.model.rotary_emb(torch.zeros(1), positions)
    half = cos.shape[-1] // 2
    assert table.shape == (256, 2 * half) and table.dtype == torch.float32
    assert torch.equal(table[positions[0]], torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1))
    assert (table[0, 0] > 1.1) == (name == "yarn")  # its attention factor


@pytest.mark.parametrize("name", DENSE)
def test_the_network_computes_the_same_bits_afterwards_on_shared_memory(name: str) -> None:
    network = build(DENSE[name]())
    network.set_attn_implementation("eager")
    before = network(input_ids=IDS).logits
    names = [name for name, _ in network.named_parameters()]
    bytes_before = sum(parameter.nbytes for parameter in network.parameters())
    weights = take(network)
    assert torch.equal(network(input_ids=IDS).logits, before)
    assert [name for name, _ in network.named_parameters()] == names
    for taken, layer in zip(weights.layers, network.model.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        assert_views(taken.qkv, [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        assert_views(taken.gate_up, [mlp.gate_proj.weight, mlp.up_proj.weight])
        if taken.qkv_bias is not None:
            assert_views(taken.qkv_bias, [attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in network.parameters()}
    assert sum(storages.values()) == bytes_before
    for taken in weights.layers:
        held = (taken.qkv, taken.out, taken.gate_up, taken.down, taken.input_norm, taken.post_norm)
        assert {one.untyped_storage().data_ptr() for one in held} <= set(storages)


def assert_views(merged: Tensor, parts: list[Any]) -> None:
    """The parts lie in the merged tensor, one behind the other, and fill it."""
    at = merged.data_ptr()
    for part in parts:
        assert part.data_ptr() == at
        at += part.nbytes
    assert at == merged.data_ptr() + merged.nbytes


def test_a_refused_network_is_left_as_it_was() -> None:
    network = build(DENSE["qwen2"]())
    change_epsilon(network)
    before = [parameter.data_ptr() for parameter in network.parameters()]
    assert isinstance(take_weights(network, 16), str)
    assert [parameter.data_ptr() for parameter in network.parameters()] == before
