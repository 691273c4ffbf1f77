"""Which attention backend a rank uses: the one place that knows them all, the device and the model."""

from __future__ import annotations

import logging
from typing import Protocol

from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.attention.protocol import AttentionBackend, AttentionShape
from lockstep_worker.attention.sdpa import SdpaBackend
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.errors import ConfigError

log = logging.getLogger(__name__)


class BackendKind(Protocol):
    """A backend before it is made."""

    name: str
    """In one word, for the log."""

    def __call__(self, kv: KVCache, shape: AttentionShape) -> AttentionBackend:
        """Make it for a cache and layers that it serves."""

    def serves(self, kv: KVCache, shape: AttentionShape) -> bool:
        """Whether it can attend over a cache of this device and dtype, for layers of this shape."""


BACKENDS: tuple[BackendKind, ...] = (PagedBackend, SdpaBackend)
"""The fastest first; the last one, the reference, serves every model."""


def choose_backend(kv: KVCache, shape: AttentionShape, *, batch_invariant: bool = False) -> AttentionBackend:
    """Make the first backend that serves a model on this rank.

    Args:
        kv: the cache; its device is the rank's, its dtype the model's.
        shape: what the model's layers ask for.
        batch_invariant: a token's numbers may not depend on its batch.

    Raises:
        ConfigError: no backend that is batch-invariant serves the model.
    """
    if batch_invariant:
        if not PagedBackend.serves(kv, shape):
            raise ConfigError(["batch_invariant: the attention that it needs does not serve this model's heads"])
        log.info("attention: %s, batch-invariant", PagedBackend.name)
        return PagedBackend(kv, shape, batch_invariant=True)
    kind = next(kind for kind in BACKENDS if kind.serves(kv, shape))
    log.info("attention: %s", kind.name)
    return kind(kv, shape)
