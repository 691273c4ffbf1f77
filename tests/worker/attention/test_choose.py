"""The choice of a backend is by what serves the model on this device, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep_worker.attention import choose
from lockstep_worker.attention.protocol import AttentionShape
from lockstep_worker.attention.sdpa import SdpaBackend
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.model.loader import load_model
from support.data.tiny_models import save_tiny_model

CPU = torch.device("cpu")


def shape_of(head_dim: int, *options: str) -> AttentionShape:
    return AttentionShape(1, frozenset({2}), 1, head_dim, frozenset(options))


def cache_of(shape: AttentionShape) -> KVCache:
    return KVCache(
        num_layers=shape.num_layers,
        num_blocks=1,
        block_size=1,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=torch.float32,
        device=CPU,
    )


class Picky(SdpaBackend):
    name = "picky"

    @staticmethod
    def serves(kv: KVCache, shape: AttentionShape) -> bool:
        return kv.keys[0].device.type == "cpu" and shape.head_dim == 64 and "sinks" not in shape.options


@pytest.mark.parametrize(
    ("shape", "taken"),
    [(shape_of(64), Picky), (shape_of(32), SdpaBackend), (shape_of(64, "sinks"), SdpaBackend)],
    ids=["served", "another head size", "with sinks"],
)
def test_the_first_that_serves_the_model_is_taken(
    shape: AttentionShape, taken: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "BACKENDS", (Picky, *choose.BACKENDS))
    assert type(choose.choose_backend(cache_of(shape), shape)) is taken


@pytest.mark.parametrize("head_dim", [1, 16, 80, 256])
def test_the_last_one_serves_every_model(head_dim: int) -> None:
    shape = shape_of(head_dim, "sinks", "softcap", "sliding_window")
    assert choose.BACKENDS[-1].serves(cache_of(shape), shape)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", set()),
        ("gemma3", {"sliding_window"}),
        ("gemma2", {"sliding_window", "softcap"}),
        ("gpt_oss", {"sinks"}),
    ],
)
def test_a_loaded_model_says_what_its_layers_ask_for(family: str, options: set[str], tmp_path: Path) -> None:
    model = load_model(str(save_tiny_model(family, tmp_path)), device=CPU, dtype="float32")
    assert options <= model._shape.options
    assert family == "gpt_oss" or model._shape.options == options
    [query_heads] = model._shape.query_heads
    assert query_heads % model.kv_heads_local == 0
