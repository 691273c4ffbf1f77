"""Which options of `lockstep-worker serve` the operator sets, each with the field that it follows from.

The launcher's command line is written from this table, and so are the flags that `engine.extraArgs` must not repeat.
The table stands below `spec`, whose rules need it, and so knows a spec and a role by their fields only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep_worker.contract import MODEL_MOUNT
from lockstep_worker.contract.serve import serve_command, written_flags

PVC_SCHEME = "pvc://"

SERVE_OPTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "host": lambda spec, role: "0.0.0.0",
    "model": lambda spec, role: find_model_path(spec.model.source),
    "served_model_name": lambda spec, role: spec.model.served_name,
    "tensor_parallel": lambda spec, role: role.parallelism.tensor,
    "data_parallel": lambda spec, role: 1,
    "max_model_len": lambda spec, role: spec.model.max_model_len,
    "dtype": lambda spec, role: spec.model.dtype,
    "max_batch_size": lambda spec, role: role.engine.max_batch_size,
    "max_num_tokens": lambda spec, role: role.engine.max_num_tokens,
    "kv_cache_memory_fraction": lambda spec, role: role.engine.kv_cache_memory_fraction,
    "hang_timeout": lambda spec, role: role.hang_detector.timeout_seconds,
    "drain_timeout": lambda spec, role: spec.drain_timeout_seconds,
    "overlap": lambda spec, role: role.engine.overlap,
}
"""Each option's value for a role, in the order of the command line; None leaves the worker's own default."""

OWN_FLAGS = sorted(written_flags(SERVE_OPTIONS))
"""Flags of `lockstep-worker serve` that follow from other fields."""


def build_serve_command(spec: Any, role: Any) -> list[str]:
    """Build the command that serves a role's model.

    Args:
        spec: the deployment's `Spec`.
        role: one of its roles.
    """
    return serve_command({name: find(spec, role) for name, find in SERVE_OPTIONS.items()}, role.engine.extra_args)


def find_model_path(source: str) -> str:
    """Find where a pod has the model: the path itself, or the claim's path under the mount."""
    if not source.startswith(PVC_SCHEME):
        return source
    _, _, path = source.removeprefix(PVC_SCHEME).partition("/")
    return f"{MODEL_MOUNT}/{path}"
