"""Starts a program of the tests on several ranks with the real mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]


def mpirun(ranks: int, module: str, *arguments: str, timeout_s: float = 360) -> str:
    """Run `python -m mpi4py -m MODULE` on so many ranks to a good end; return what they printed."""
    inherited = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    environ = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *inherited]),
    }
    launcher = [str(Path(sys.executable).parent / "mpirun"), "-n", str(ranks), "--map-by", ":OVERSUBSCRIBE"]
    done = subprocess.run(
        [*launcher, "--bind-to", "none", sys.executable, "-m", "mpi4py", "-m", module, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
