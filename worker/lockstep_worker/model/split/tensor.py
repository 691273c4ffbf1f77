"""Tensor parallelism by transformers' own plan: which weights are cut, and where ranks add or gather.

Read from the plan: names and styles. Not used: its DTensors and hooks. What remains on a rank is plain linear layers on
local weights, one all-reduce after each `rowwise` layer, one all-gather after each `colwise_gather_output` layer. All
ranks of the group get the same result of every layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from lockstep_worker.errors import UnsupportedModel
from lockstep_worker.parallel.topology import Axis

REPLICATED = frozenset({"replicate", "replicated_with_grad_allreduce", "embedding_rowwise", "embedding_colwise"})
"""Styles under which a rank keeps the whole module. A whole embedding costs memory and saves an all-reduce a step."""

COLWISE = "colwise"
GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
ROWWISE = "rowwise"
KV_LAYERS = (".k_proj", ".v_proj")
"""What transformers calls the layers that make keys and values."""
ROWWISE_SPLIT = frozenset({"rowwise_split_input", "rowwise_rep"})


@dataclass(frozen=True, slots=True)
class Cut:
    """Which of `count` equal parts along a dimension a rank holds."""

    dim: int
    index: int
    count: int


class RowwiseLinear(nn.Linear):
    """A linear layer that holds some of the input features; ranks add up their parts.

    Args:
        whole: the uncut layer.
        axis: who shares it.
        split_input: True when the input arrives whole, and this rank takes its own features of it.
    """

    def __init__(self, whole: nn.Linear, axis: Axis, *, split_input: bool) -> None:
        features = _divide(whole.in_features, axis.size, "input features of a row-wise layer")
        super().__init__(features, whole.out_features, whole.bias is not None, device="meta", dtype=whole.weight.dtype)
        self._axis = axis
        self._split_input = split_input

    def forward(self, input: Tensor) -> Tensor:
        """Compute the whole layer's output, the same on all ranks; the bias is added once."""
        if self._split_input:
            input = input.narrow(-1, self._axis.index * self.in_features, self.in_features)
        output = linear(input, self.weight)
        dist.all_reduce(output, group=self._axis.group)
        return output if self.bias is None else output + self.bias


class GatheredLinear(nn.Linear):
    """A linear layer that holds some of the output features; ranks gather all of them.

    Args:
        whole: the uncut layer.
        axis: who shares it.
    """

    def __init__(self, whole: nn.Linear, axis: Axis) -> None:
        features = _divide(whole.out_features, axis.size, "output features of a gathered layer")
        super().__init__(whole.in_features, features, whole.bias is not None, device="meta", dtype=whole.weight.dtype)
        self._axis = axis

    def forward(self, input: Tensor) -> Tensor:
        """Compute the whole layer's output, the same on all ranks."""
        local = super().forward(input).contiguous()
        parts = local.new_empty(self._axis.size, *local.shape)
        dist.all_gather(list(parts.unbind(0)), local, group=self._axis.group)
        return parts.movedim(0, -2).flatten(-2)


def apply_plan(network: Any, axis: Axis) -> dict[str, Cut]:
    """Replace the planned layers of a model without weights by this rank's parts.

    Args:
        network: built on the meta device.
        axis: who shares it.

    Returns:
        For each parameter that is cut, which part this rank holds.

    Raises:
        UnsupportedModel: the plan has a style that is not served, or a size does not divide.
    """
    cuts: dict[str, Cut] = {}
    kv_heads = count_kv_heads(network.config.get_text_config(decoder=True))
    plan = network.tp_plan or {}
    if not plan:
        raise UnsupportedModel(f"model type {network.config.model_type!r} has no tensor-parallel plan")
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    modules = {name: module for name, module in network.named_modules() if module is not network}
    for name in [*modules, *parameters]:
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None or style in REPLICATED:
            continue
        own = _cut_for(name, style, axis, kv_heads)
        part = _cut_module(name, modules.get(name), style, axis, own)
        if part is None:
            continue
        network.set_submodule(name, part)
        cuts[f"{name}.weight"] = own
        if own.dim == 0:
            cuts[f"{name}.bias"] = own
    return cuts


def count_kv_heads(text: Any) -> int:
    """Count a model's heads of keys and values, from the configuration of its text part."""
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)


def _cut_for(name: str, style: str, axis: Axis, kv_heads: int) -> Cut:
    """Choose this rank's part of a layer.

    Keys and values come in as many parts as there are heads where the ranks are more: then several ranks hold the same
    head, the one that their query heads look at.
    """
    if style == COLWISE and name.endswith(KV_LAYERS) and axis.size > kv_heads:
        return Cut(0, axis.index * kv_heads // axis.size, kv_heads)
    return Cut(0 if style == COLWISE or style in GATHERED else 1, axis.index, axis.size)


def _cut_module(name: str, module: nn.Module | None, style: str, axis: Axis, own: Cut) -> nn.Linear | None:
    """Build this rank's part of a layer, without weights; None for a layer that stays whole."""
    if not isinstance(module, nn.Linear):
        raise UnsupportedModel(f"{name}: tensor parallelism of style {style!r} is not served for what it is")
    if style in GATHERED:
        # A vocabulary that does not divide stays whole: right, and only slower.
        return GatheredLinear(module, axis) if module.out_features % axis.size == 0 else None
    if style == COLWISE:
        features = _divide(module.out_features, own.count, f"output features of {name}")
        bias = module.bias is not None
        return nn.Linear(module.in_features, features, bias, device="meta", dtype=module.weight.dtype)
    if style == ROWWISE or style in ROWWISE_SPLIT:
        return RowwiseLinear(module, axis, split_input=style in ROWWISE_SPLIT)
    raise UnsupportedModel(f"{name}: tensor parallelism of style {style!r} is not served")


def _divide(count: int, size: int, what: str) -> int:
    if count % size:
        raise UnsupportedModel(f"{count} {what} do not divide by tensor parallelism {size}")
    return count // size


def take(tensor: Any, cut: Cut) -> Tensor:
    """Take a part of a tensor or of a safetensors slice, which is read only as far as needed."""
    size = tensor.shape[cut.dim] if isinstance(tensor, Tensor) else tensor.get_shape()[cut.dim]
    start, end = cut.index * size // cut.count, (cut.index + 1) * size // cut.count
    part: Tensor = tensor[start:end] if cut.dim == 0 else tensor[:, start:end]
    return part


def check_group(axis: Axis) -> None:
    """Assert that the process group is what the configuration says; a wrong one would wait for ever."""
    actual = (dist.get_rank(axis.group), dist.get_world_size(axis.group))
    assert actual == (axis.index, axis.size), f"group has {actual}, expected {(axis.index, axis.size)}"
