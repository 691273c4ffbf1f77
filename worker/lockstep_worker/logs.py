"""Logging for every process of a group: one line an event, with the rank, on standard error."""

from __future__ import annotations

import logging
import sys


def setup_logs(who: str, level: str = "INFO") -> None:
    """Send the `lockstep_worker` logger to standard error, each line marked with who speaks (`rank 0`, `frontend`)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s [{who}] %(name)s: %(message)s"))
    logger = logging.getLogger("lockstep_worker")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
