"""`python -m lockstep_worker.frontend`, started by rank 0 with its settings on standard input.

Rank 0 starts it in a session of its own, so that what kills the ranks at once does not keep it from telling its
clients; the kernel sends it SIGHUP when its parent dies, so that it never stays behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import zmq

from lockstep_worker import contract
from lockstep_worker.errors import ConfigError
from lockstep_worker.frontend.settings import read_settings
from lockstep_worker.health.parent import ask_for_signal
from lockstep_worker.logs import setup_logs

logger = logging.getLogger("lockstep_worker.frontend")


def main() -> int:
    """Run the frontend to its end and return the exit code."""
    try:
        settings = read_settings(sys.stdin.buffer)
        setup_logs("frontend", settings.log_level)
        follow_parent(settings.parent_pid)
        from lockstep_worker.frontend.http.server import serve  # noqa: PLC0415 (seconds, in which the parent may die)

        return asyncio.run(serve(settings))
    except ConfigError as error:
        print(f"frontend: {error}", file=sys.stderr)
        return contract.EXIT_CONFIG
    except (OSError, zmq.ZMQError) as error:
        logger.error("the frontend cannot serve: %s", error)
        return contract.EXIT_FRONTEND


def follow_parent(parent_pid: int | None) -> None:
    """Have the kernel send SIGHUP when the parent dies.

    Raises:
        ProcessLookupError: it is dead already.
    """
    ask_for_signal(signal.SIGHUP)
    if parent_pid is not None and os.getppid() != parent_pid:
        raise ProcessLookupError("the rank that started the frontend is gone")


if __name__ == "__main__":
    sys.exit(main())
