"""`python -m lockstep_worker.rank CONFIG_JSON`: one rank's process."""

from __future__ import annotations

import sys

from lockstep_worker import contract
from lockstep_worker.compile_cache import find_cache_faults
from lockstep_worker.config import Config
from lockstep_worker.health.abort import end_group


def main() -> int:
    """Run one rank and return its exit code.

    The supervisor saw the folder for what is compiled on its own host only. It is looked at again before torch is
    imported, which makes a folder that is missing, or raises an error that does not name the option.
    """
    config = Config.from_json(sys.argv[1])
    if faults := list(find_cache_faults(config.compile_cache)):
        end_group(contract.EXIT_CONFIG, "; ".join(faults), rank=None, mpi_abort=None, notify=None)
    from lockstep_worker.rank.process import run_rank  # noqa: PLC0415 - see above

    return run_rank(config)


if __name__ == "__main__":
    sys.exit(main())
