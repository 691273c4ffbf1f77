import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from accelerate import init_empty_weights  # type: ignore[import-untyped]

from lockstep_worker.errors import ConfigError, UnsupportedModel
from lockstep_worker.model.loader import load_model, read_end_ids
from lockstep_worker.model.split.tensor import apply_plan
from lockstep_worker.model.support import check_supported
from lockstep_worker.parallel.topology import Axis
from support.data.tiny_models import CONFIGS, SIZES, save_tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_that_is_tested_is_accepted(family: str) -> None:
    check_supported(CONFIGS[family]())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        pytest.param(hf.Qwen3NextConfig, "recurrent state", id="linear-attention"),
        pytest.param(hf.MambaConfig, "recurrent state", id="mamba"),
        pytest.param(hf.FalconH1Config, "layers of type hybrid", id="hybrid"),
        pytest.param(hf.Llama4TextConfig, "chunked attention", id="chunked"),
        pytest.param(hf.T5Config, "encoder-decoder", id="encoder-decoder"),
        pytest.param(hf.DeepseekV3Config, "multi-head latent attention", id="latent"),
        pytest.param(hf.Gemma3nTextConfig, "share keys and values", id="shared-kv"),
        pytest.param(hf.BloomConfig, "its attention cannot be replaced", id="alibi"),
        pytest.param(
            lambda: hf.Gemma3TextConfig(use_bidirectional_attention=True), "bidirectional", id="bidirectional"
        ),
        pytest.param(
            lambda: hf.LlamaConfig(rope_parameters=_dynamic()), "of type dynamic depends on", id="dynamic-rope"
        ),
        pytest.param(
            lambda: hf.LlamaConfig(quantization_config={"quant_method": "fp8"}), "are quantised", id="quantised"
        ),
    ],
)
def test_a_model_that_cannot_be_served_right_is_refused_by_name(config: Any, reason: str) -> None:
    made = config()
    with pytest.raises(UnsupportedModel, match=rf"model type '{made.model_type}' cannot be served: .*{reason}"):
        check_supported(made)


def test_heads_that_do_not_divide_are_refused_with_both_numbers() -> None:
    config = hf.LlamaConfig(**{**SIZES, "hidden_size": 96, "num_attention_heads": 12})
    for size in (1, 2, 4):  # four ranks hold each KV head twice
        check_supported(config, tensor_parallel=size)
    with pytest.raises(UnsupportedModel, match=r"its 2 KV heads are neither a multiple nor a divisor of .* 3"):
        check_supported(config, tensor_parallel=3)
    with pytest.raises(UnsupportedModel, match=r"its 12 attention heads do not divide by tensor parallelism 8"):
        check_supported(config, tensor_parallel=8)


def test_a_plan_style_that_is_not_served_is_refused_with_the_layer() -> None:
    with init_empty_weights():
        network = hf.AutoModelForCausalLM.from_config(CONFIGS["qwen3_moe"]())
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.0\.mlp\.experts.*moe_tp_experts"):
        apply_plan(network, Axis(2, 0))


def test_a_width_that_does_not_divide_is_refused_with_both_numbers() -> None:
    config = hf.LlamaConfig(**{**SIZES, "intermediate_size": 49})
    with init_empty_weights():
        network = hf.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModel, match=r"49 output features of model\.layers\.0\.mlp\.gate_proj .* 2"):
        apply_plan(network, Axis(2, 0))


def test_an_encoder_is_refused_when_it_first_runs(tmp_path: Path) -> None:
    config = hf.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="BertSelfAttention is not causal"):
        load_model(str(tmp_path), device=CPU, dtype="float32")


def test_layers_that_differ_in_their_keys_are_refused_when_they_first_run(tmp_path: Path) -> None:
    config = hf.DiffLlamaConfig(**{**SIZES, "num_hidden_layers": 2})
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"of its 2 layers these attend .*\[0, 0, 1, 1\]"):
        load_model(str(tmp_path), device=CPU, dtype="float32")


def test_a_folder_without_a_model_and_an_unknown_dtype_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model(str(tmp_path), device=CPU, dtype="float31")
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["model", "dtype"]


def test_batch_invariance_without_a_gpu_is_refused_by_its_option(tmp_path: Path) -> None:
    path = str(save_tiny_model("llama", tmp_path))
    with pytest.raises(ConfigError, match="batch_invariant: on a GPU only, and the device is cpu"):
        load_model(path, device=CPU, batch_invariant=True)
    with pytest.raises(ConfigError, match="batch_invariant: needs fast_path, which is off"):
        load_model(path, device=torch.device("cuda"), fast_path=False, batch_invariant=True)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    CONFIGS["llama"]().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model: .* has neither model.safetensors.index.json nor model.safetensors"):
        load_model(str(tmp_path), device=CPU)


def test_end_ids_come_from_both_configurations(tmp_path: Path) -> None:
    path = save_tiny_model("llama", tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    config = CONFIGS["llama"]()
    config.eos_token_id = 5
    assert read_end_ids(str(path), config) == (7, 9, 5)
    (path / "generation_config.json").unlink()
    assert read_end_ids(str(path), config) == (5,)


def test_auto_takes_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    network = hf.AutoModelForCausalLM.from_config(CONFIGS["llama"](), dtype=torch.bfloat16)
    network.save_pretrained(tmp_path)
    assert load_model(str(tmp_path), device=CPU).dtype == torch.bfloat16
    assert load_model(str(tmp_path), device=CPU, dtype="float32").dtype == torch.float32


def _dynamic() -> dict[str, Any]:
    return {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
