"""The choice of a backend is by what serves the cache, in order."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.attention import choose
from lockstep_worker.attention.sdpa import SdpaBackend
from lockstep_worker.cache.tensors import KVCache


def cache_of(head_dim: int) -> KVCache:
    return KVCache(
        num_layers=1,
        num_blocks=1,
        block_size=1,
        kv_heads=1,
        head_dim=head_dim,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


class Picky(SdpaBackend):
    name = "picky"

    @staticmethod
    def serves(kv: KVCache) -> bool:
        return kv.keys[0].shape[-1] == 64


def test_the_first_that_serves_the_cache_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "BACKENDS", (Picky, *choose.BACKENDS))
    assert type(choose.choose_backend(cache_of(64))) is Picky
    assert type(choose.choose_backend(cache_of(32))) is SdpaBackend


@pytest.mark.parametrize("head_dim", [1, 16, 80, 256])
def test_the_last_one_serves_every_cache(head_dim: int) -> None:
    assert choose.BACKENDS[-1].serves(cache_of(head_dim))
