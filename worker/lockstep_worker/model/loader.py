"""From a folder in Hugging Face's layout to a `Model`: configuration, weights, end ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as hf_logging

from lockstep_worker.attention.interface import NAME, register_attention
from lockstep_worker.errors import ConfigError, UnsupportedModel
from lockstep_worker.model.dense.recognise import take_weights
from lockstep_worker.model.dense.weights import DenseWeights
from lockstep_worker.model.forward import Model
from lockstep_worker.model.probe import probe_attention
from lockstep_worker.model.progress import Progress, show_bytes
from lockstep_worker.model.shards import list_shards, load_shards
from lockstep_worker.model.split.tensor import apply_plan, check_group
from lockstep_worker.model.support import check_supported
from lockstep_worker.parallel.topology import ALONE, Axis, Topology

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_model(
    path: str,
    *,
    device: torch.device,
    dtype: str = "auto",
    topology: Topology = ALONE,
    fast_path: bool = True,
    batch_invariant: bool = False,
) -> Model:
    """Load one rank's part of a model; nothing is fetched from anywhere.

    Args:
        path: folder with `config.json`, safetensors and, where the model has one, `generation_config.json`.
        device: where the weights go.
        dtype: `float32`, `float16`, `bfloat16`, or `auto` for the checkpoint's own.
        topology: which part of the weights is this rank's, and the process groups that share them; a group of one never
            touches torch.distributed.
        fast_path: on a GPU, take this engine's own kernels for networks that they serve.
        batch_invariant: compute each token bit for bit the same in any batch.

    Raises:
        ConfigError: no model at the path, an unknown dtype, or a model or device that cannot be batch-invariant.
        UnsupportedModel: the model cannot be served right.
    """
    files = _check_arguments(path, dtype)
    if batch_invariant:
        _check_invariant(device, fast_path)
    register_attention()
    hf_logging.disable_progress_bar()  # a rank's log is no terminal
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    check_supported(config, topology.tensor.size)
    size = show_bytes(sum(file.stat().st_size for file in files))
    log.info("weights: %s in %s", size, "1 file" if len(files) == 1 else f"{len(files)} files")
    if topology.tensor.size == 1:
        network = _load_whole(path, device, DTYPES.get(dtype, "auto"))
    else:
        network = _load_part(files, config, device, DTYPES.get(dtype), topology.tensor)
    ends = read_end_ids(path, config)
    return make_model(
        network,
        end_ids=ends,
        device=device,
        tensor_parallel=topology.tensor.size,
        fast_path=fast_path,
        batch_invariant=batch_invariant,
    )


def make_model(
    network: Any,
    *,
    end_ids: tuple[int, ...],
    device: torch.device,
    tensor_parallel: int,
    fast_path: bool,
    batch_invariant: bool = False,
) -> Model:
    """Make a `Model` of a transformers network whose weights are on the device; see `load_model`.

    Raises:
        ConfigError: it cannot be batch-invariant.
        UnsupportedModel: the model cannot be served right.
    """
    if batch_invariant:
        _check_invariant(device, fast_path)
    network.eval().requires_grad_(False)
    shape = probe_attention(network, network.config.get_text_config(decoder=True).num_hidden_layers, device)
    dense = None
    if fast_path and device.type == "cuda":
        dense = _take_dense(network, tensor_parallel, batch_invariant=batch_invariant)
    return Model(network, shape=shape, end_ids=end_ids, device=device, dense=dense, batch_invariant=batch_invariant)


def _check_invariant(device: torch.device, fast_path: bool) -> None:
    """Refuse what is known to be no fast path before anything is loaded."""
    if device.type != "cuda":
        raise ConfigError([f"batch_invariant: on a GPU only, and the device is {device.type}"])
    if not fast_path:
        raise ConfigError(["batch_invariant: needs fast_path, which is off"])


def _take_dense(network: Any, tensor_parallel: int, *, batch_invariant: bool) -> DenseWeights | None:
    """Take a network's weights for the fast path, or say why transformers' own forward runs."""
    taken = take_weights(network, network.config.get_text_config(decoder=True).max_position_embeddings, tensor_parallel)
    if isinstance(taken, DenseWeights):
        log.info("forward: %s, by this engine's own kernels", "batch-invariant" if batch_invariant else "fast")
        return taken
    if batch_invariant:
        raise ConfigError([f"batch_invariant: needs the fast path, which does not serve this model, since {taken}"])
    log.info("forward: generic, transformers' own, since %s", taken)
    return None


def read_end_ids(path: str, config: Any) -> tuple[int, ...]:
    """Collect the ids that end a text: the generation configuration's, then the model's own, none twice."""
    sources = [config.get_text_config(decoder=True).eos_token_id]
    if (Path(path) / "generation_config.json").exists():
        sources.insert(0, GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id)
    ids: dict[int, None] = {}
    for source in sources:
        for one in source if isinstance(source, list) else [source]:
            if one is not None:
                ids[int(one)] = None
    return tuple(ids)


def _check_arguments(path: str, dtype: str) -> list[Path]:
    """Find every fault that can be known before anything is loaded; return the files of the weights."""
    problems, files = [], []
    if not (Path(path) / "config.json").is_file():
        problems.append(f"model: {path} has no config.json")
    else:
        try:
            files = list_shards(Path(path))
        except ConfigError as error:
            problems += error.problems
    if dtype != "auto" and dtype not in DTYPES:
        problems.append(f"dtype: {dtype!r} is none of auto, {', '.join(DTYPES)}")
    if problems:
        raise ConfigError(problems)
    return files


def _load_whole(path: str, device: torch.device, dtype: torch.dtype | str) -> Any:
    """Load a model by transformers' own loader, which also converts checkpoints of another layout."""
    with _progress_in_log():
        network = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=NAME,
            device_map={"": device},
            local_files_only=True,
            use_safetensors=True,
        )
    if device.type == "cpu":
        _read_mapped(network)
    return network


def _read_mapped(network: torch.nn.Module) -> None:
    """Copy weights that are views of mapped files: read now, with progress, not page by page under a request.

    Nor can a file that changes or goes away hurt a rank that serves.
    """
    tensors = [*network.parameters(), *network.buffers()]
    progress = Progress("weights", sum(tensor.nbytes for tensor in tensors), show_bytes)
    for tensor in tensors:
        tensor.data = tensor.data.clone()
        progress.add(tensor.nbytes)


@contextmanager
def _progress_in_log() -> Iterator[None]:
    """Have transformers' progress bar over the weights, which it counts by tensor, come as lines in the log."""

    def follow(bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Collection):
            progress = Progress("weights", len(args[0]), lambda count: f"{count} tensors")
            args = (progress.follow(args[0]), *args[1:])
        return bar(*args, **options)

    before = hf_logging.set_tqdm_hook(follow)
    try:
        yield
    finally:
        hf_logging.set_tqdm_hook(before)


def _load_part(files: list[Path], config: Any, device: torch.device, dtype: torch.dtype | None, axis: Axis) -> Any:
    """Build the model without weights, cut its layers by the plan, and read only this rank's parts."""
    check_group(axis)
    dtype = dtype or config.get_text_config(decoder=True).dtype or torch.float32
    with init_empty_weights(include_buffers=False):
        network = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    if dtype != torch.float32 and (network._keep_in_fp32_modules or network._keep_in_fp32_modules_strict):
        raise UnsupportedModel(f"model type {config.model_type!r} mixes dtypes: tensor parallelism needs float32")
    cuts = apply_plan(network, axis)
    load_shards(network, files, cuts, device)
    return network.to(device)
