"""Reading one rank's part of a safetensors checkpoint: of a weight that is cut, a rank never holds the whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from lockstep_worker.errors import UnsupportedModel
from lockstep_worker.model.parallel import Cut, take

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def load_shards(network: Any, path: Path, cuts: Mapping[str, Cut], device: torch.device) -> None:
    """Fill a model without weights from a checkpoint; the dtype is the one that each parameter has.

    Args:
        network: on the meta device; layers already cut to this rank's parts.
        path: the model's folder.
        cuts: for each parameter that is cut, the part.
        device: where they go.

    Raises:
        UnsupportedModel: the checkpoint's names are not the model's.
    """
    is_tied = network.config.get_text_config(decoder=True).tie_word_embeddings
    tied = (network._tied_weights_keys or {}) if is_tied else {}
    wanted = network.state_dict()
    with ExitStack() as stack:
        files = _open_files(path, device, stack)
        missing = [name for name in wanted if name not in files and name not in tied]
        if missing:
            raise UnsupportedModel(
                f"the checkpoint lacks {missing[0]} and {len(missing) - 1} more of the model's own names; "
                "converting checkpoints is served with tensor parallelism 1 only"
            )
        for name in sorted(wanted, key=lambda name: name in tied):  # a tied parameter after the one it is tied to
            source = network.get_parameter(tied[name]).data if name in tied else files[name].get_slice(name)
            part = take(source, cuts[name]) if name in cuts else source[:]
            _place(network, name, part.to(device, wanted[name].dtype))


def _open_files(path: Path, device: torch.device, stack: ExitStack) -> dict[str, Any]:
    """Map each tensor's name to the open file that holds it."""
    if (path / INDEX).exists():
        names: dict[str, str] = json.loads((path / INDEX).read_text())["weight_map"]
        opened = {file: stack.enter_context(_open(path / file, device)) for file in sorted(set(names.values()))}
        return {name: opened[file] for name, file in names.items()}
    only = stack.enter_context(_open(path / SINGLE, device))
    return dict.fromkeys(only.keys(), only)


def _open(file: Path, device: torch.device) -> Any:
    return safe_open(file, framework="pt", device=str(device))


def _place(network: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor where the model has a parameter or buffer without data."""
    owner, _, leaf = name.rpartition(".")
    module = network.get_submodule(owner)
    expected = getattr(module, leaf).shape
    if tensor.shape != expected:
        raise UnsupportedModel(f"{name} has shape {tuple(tensor.shape)} in the checkpoint, expected {tuple(expected)}")
    if leaf in module._buffers:
        module._buffers[leaf] = tensor
    else:
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
