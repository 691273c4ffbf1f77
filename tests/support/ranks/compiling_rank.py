"""Stands where a rank does and compiles one of the project's kernels; says what it found. For `test_compile_cache`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from support.kernels.offline import Specialisation, compile_here

_EARLY = sorted({"torch", "triton"} & sys.modules.keys())
_VARIABLES = [os.environ.get(name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")]
_TYPES = {"X": "*bf16", "WEIGHT": "*bf16", "OUT": "*bf16", "eps": "fp32", "size": "i32"}
_CONSTANTS = {"RESIDUAL": None, "ADDS": False, "BLOCK_E": 1024}
_NORM = Specialisation("lockstep_worker.kernels.norm:_norm_kernel", _TYPES, _CONSTANTS)


def compile_norm() -> bool:
    """Compile it for a GPU that is not here; whether Triton found it compiled."""
    import triton  # noqa: PLC0415  the environment is looked at first

    hits: list[bool] = []

    def note(**told: Any) -> None:
        hits.append(told["cache_hit"])

    triton.knobs.compilation.listener = note
    compile_here(_NORM)
    [hit] = hits
    return hit


if __name__ == "__main__":
    found = {"early": _EARLY, "variables": _VARIABLES, "hit": compile_norm()}
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    print(json.dumps({**found, "inductor": cache_dir()}))
