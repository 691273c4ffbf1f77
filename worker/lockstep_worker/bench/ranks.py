"""Starting the ranks of a benchmark with the real mpirun; rank 0 prints their result as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from lockstep_worker.bench import BenchFailed
from lockstep_worker.supervisor.command import ALLOW_ROOT, Mpirun, map_here


def run_ranks(module: str, ranks: int, arguments: list[str], mpirun: Mpirun, environ: Mapping[str, str]) -> Any:
    """Run `python -m mpi4py -m MODULE` on this host and return what rank 0 printed.

    Args:
        module: what each rank runs.
        ranks: how many.
        arguments: of the module.
        mpirun: what starts them.
        environ: our environment, for the ranks.

    Raises:
        BenchFailed: with what the ranks said.
    """
    done = subprocess.run(
        [mpirun.path, "-n", str(ranks), "--bind-to", "none", *map_here(mpirun)]
        + [sys.executable, "-m", "mpi4py", "-m", module, *arguments],
        env={**environ, **(ALLOW_ROOT if os.geteuid() == 0 else {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchFailed(f"{module}: the ranks ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)
