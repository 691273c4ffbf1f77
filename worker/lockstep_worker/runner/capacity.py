"""What fits where: the device, the context limit and the number of blocks, decided once at start."""

from __future__ import annotations

import torch

from lockstep_worker.config import Config
from lockstep_worker.errors import ConfigError
from lockstep_worker.model.forward import Model
from lockstep_worker.model.progress import show_bytes


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """Pick this rank's device and make it the current one.

    Raises:
        ConfigError: a GPU is asked for and there is none for this rank.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError([f"device: cuda, but local rank {local_rank} sees {torch.cuda.device_count()} GPUs"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def choose_max_model_len(wanted: int | None, model_limit: int) -> int:
    """Take the configured context limit, or the model's.

    Raises:
        ConfigError: more is asked for than the model can.
    """
    if wanted is not None and wanted > model_limit:
        raise ConfigError([f"max_model_len: {wanted} is over the model's own limit of {model_limit} tokens"])
    return wanted or model_limit


def choose_num_blocks(
    config: Config, bytes_per_block: int, max_model_len: int, device: torch.device, run_bytes: int = 0
) -> int:
    """Fill the memory meant for the KV cache with blocks.

    Args:
        config: its fraction is of what is free of the device's memory, with the weights loaded.
        bytes_per_block: of all layers of this rank.
        max_model_len: the longest context.
        device: where the cache will be.
        run_bytes: what the largest run takes at its peak, beside weights and cache.

    Raises:
        ConfigError: one request of the longest kind would not fit.
    """
    if device.type == "cuda":
        memory, knob = torch.cuda.mem_get_info(device)[0] - run_bytes, "kv_cache_memory_fraction"
    else:
        memory, knob = config.cpu_kv_cache_mib << 20, "cpu_kv_cache_mib"
    spare = 1  # `KVCache` has one block more than the pool
    room = max(int(memory * config.kv_cache_memory_fraction) // bytes_per_block - spare, 0)
    num_blocks = config.num_blocks or room
    least = -(-max_model_len // config.block_size)
    if num_blocks < least:
        knob = "num_blocks" if config.num_blocks else knob
        needed = f"there is room for {num_blocks} blocks; a request of max_model_len {max_model_len} needs {least}"
        run = f"; a run takes {show_bytes(run_bytes)}, less with a lower max_num_tokens or max_batch_size"
        raise ConfigError([f"{knob}: {needed}{run if run_bytes and not config.num_blocks else ''}"])
    return num_blocks


def create_cache(model: Model, config: Config, num_blocks: int) -> None:
    """Give a model the KV cache that was chosen.

    Raises:
        ConfigError: the device has no memory for it, as where the number of blocks is configured.
    """
    try:
        model.create_cache(num_blocks, config.block_size)
    except torch.cuda.OutOfMemoryError as error:
        knob = "num_blocks" if config.num_blocks else "kv_cache_memory_fraction"
        raise ConfigError([f"{knob}: {num_blocks} blocks do not fit beside the weights; lower it"]) from error
