"""The files of a safetensors checkpoint, and reading one rank's part of them.

Of a weight that is cut, a rank never holds the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor, nn

from lockstep_worker.errors import ConfigError, UnsupportedModel
from lockstep_worker.model.progress import Progress, show_bytes
from lockstep_worker.model.split.tensor import Cut, take

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class _Index(msgspec.Struct):
    """The part of an index that is read: which file holds each tensor."""

    weight_map: dict[str, str]


def list_shards(path: Path) -> list[Path]:
    """Find the files that hold a checkpoint's weights; where there is one for all, it wins, as in transformers.

    Raises:
        ConfigError: there are none, or the index cannot be read or names files that are not there.
    """
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    if not (path / INDEX).is_file():
        raise ConfigError([f"model: {path} has neither {INDEX} nor {SINGLE}"])
    try:
        index = msgspec.json.decode((path / INDEX).read_bytes(), type=_Index)
    except msgspec.DecodeError as error:
        raise ConfigError([f"model: {path / INDEX} is no index of a checkpoint: {error}"]) from None
    names = sorted(set(index.weight_map.values()))
    if missing := [name for name in names if not (path / name).is_file()]:
        raise ConfigError([f"model: {path} lacks {len(missing)} of its {len(names)} files of weights: {missing[0]}"])
    return [path / name for name in names]


def load_shards(network: Any, shards: Sequence[Path], cuts: Mapping[str, Cut], device: torch.device) -> None:
    """Fill a model without weights from a checkpoint; the dtype is the one that each parameter has.

    Afterwards the files are needed no more.

    Args:
        network: on the meta device; layers already cut to this rank's parts.
        shards: the checkpoint's files.
        cuts: for each parameter that is cut, the part.
        device: where they go.

    Raises:
        UnsupportedModel: the checkpoint's names are not the model's.
    """
    is_tied = network.config.get_text_config(decoder=True).tie_word_embeddings
    tied = (network._tied_weights_keys or {}) if is_tied else {}
    wanted = network.state_dict()
    with ExitStack() as stack:
        files = _open_files(shards, device, stack)
        missing = [name for name in wanted if name not in files and name not in tied]
        if missing:
            raise UnsupportedModel(
                f"the checkpoint lacks {missing[0]} and {len(missing) - 1} more of the model's own names; "
                "converting checkpoints is served with tensor parallelism 1 only"
            )
        progress = Progress("weights", sum(one.nbytes for name, one in wanted.items() if name not in tied), show_bytes)
        for name in sorted(wanted, key=lambda name: name in tied):  # a tied parameter after the one it is tied to
            source = network.get_parameter(tied[name]).data if name in tied else files[name].get_slice(name)
            part = take(source, cuts[name]) if name in cuts else source[:]
            is_mapped = device.type == "cpu" and name not in tied  # a view of the file, of which nothing is read yet
            _put(network, name, part.to(device, wanted[name].dtype, copy=is_mapped))
            progress.add(wanted[name].nbytes)


def _open_files(shards: Sequence[Path], device: torch.device, stack: ExitStack) -> dict[str, Any]:
    """Map each tensor's name to the open file that holds it."""
    files = [stack.enter_context(safe_open(file, framework="pt", device=str(device))) for file in shards]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118  (a file is no mapping)


def _put(network: nn.Module, name: str, tensor: Tensor) -> None:
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
