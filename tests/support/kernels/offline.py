"""Compiles kernels for a GPU that is not here: in a process of its own, since this one's run in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

HOPPER, BLACKWELL = 90, 100


@dataclass(frozen=True)
class Specialisation:
    """A kernel and what it is compiled for."""

    kernel: str
    """`module:function`"""
    signature: Mapping[str, str]
    """Each argument's Triton type in order, as `*bf16`, `i32`, `fp32`; constants may be left out."""
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    capabilities: Sequence[int] = (HOPPER,)
    options: Mapping[str, Any] = field(default_factory=dict)
    multiples_of_16: Sequence[str] = ()
    """Integers that are, as most strides; pointers are anyway, as torch allocates."""


@dataclass(frozen=True)
class Compiled:
    """What came out for one capability."""

    capability: int
    ptx: str
    shared_bytes: int


def compile_offline(*wanted: Specialisation) -> list[list[Compiled]]:
    """Compile each specialisation for each of its capabilities; a kernel that does not compile fails with its error."""
    answer = subprocess.run(
        [sys.executable, "-m", "support.kernels.offline"],
        input=json.dumps([asdict(one) for one in wanted]),
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    return [[Compiled(**one) for one in results] for results in json.loads(answer.stdout)]


def compile_here(wanted: Specialisation) -> list[dict[str, Any]]:
    """Compile in this process, which must not run kernels in the interpreter."""
    import triton  # noqa: PLC0415  the test's own process must not import it twice
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    module, name = wanted.kernel.split(":")
    kernel = getattr(import_module(module), name)
    types = {name: wanted.signature.get(name, "constexpr") for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in wanted.constants.items()}
    options = {"num_warps": wanted.num_warps, "num_stages": wanted.num_stages, **wanted.options}
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name in wanted.multiples_of_16]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    results = []
    for capability in wanted.capabilities:
        source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        results.append(asdict(Compiled(capability, compiled.asm["ptx"], compiled.metadata.shared)))
    return results


if __name__ == "__main__":
    json.dump([compile_here(Specialisation(**one)) for one in json.load(sys.stdin)], sys.stdout)
