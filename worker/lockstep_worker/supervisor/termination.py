"""How it ended, in one `Failure`: judged from the ranks' end, and written where Kubernetes keeps it."""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
from pathlib import Path

from lockstep_worker import contract
from lockstep_worker.errors import ConfigError
from lockstep_worker.health.abort import Failure
from lockstep_worker.supervisor.process import RanksProcess

log = logging.getLogger(__name__)
_MESSAGE_LIMIT = 4096
"""What Kubernetes keeps of a termination message, in bytes."""


def judge_end(ranks: RanksProcess, *, stopped: bool) -> Failure:
    """Join the exit code of ranks that ended with what one of them said about it, which is nearer to the cause.

    Args:
        ranks: ended.
        stopped: whether we were asked to stop.
    """
    code = ranks.exit_code
    if stopped and code == 128 + signal.SIGUSR1:  # the ranks were still starting, and had no drain to do
        code = contract.EXIT_OK
    if ranks.failure is not None and code != contract.EXIT_OK:
        return _blame(ranks.failure, code, ranks.lost_rank)
    ended_well = "drained" if stopped else "the ranks ended by themselves"
    message = ranks.tail if code != contract.EXIT_OK else ended_well
    return Failure(contract.exit_reason(code), code, ranks.lost_rank, message)


def write_termination_message(failure: Failure, path: Path) -> None:
    """Write the file that Kubernetes mounted; elsewhere there is none, and none is made."""
    while len(failure.to_json()) > _MESSAGE_LIMIT:  # to_json is ASCII; escapes make its length hard to tell ahead
        failure = dataclasses.replace(failure, message=failure.message[: len(failure.message) * 3 // 4])
    try:
        if path.exists():
            path.write_text(failure.to_json(), encoding="utf-8")
    except OSError as error:
        log.debug("no termination message: %s", error)


def refuse(error: ConfigError, *, termination_log: Path = Path(contract.TERMINATION_LOG)) -> int:
    """Say every fault of a configuration, for people and for Kubernetes, and return the exit code."""
    for problem in error.problems:
        print(f"lockstep-worker: {problem}", file=sys.stderr)
    code = contract.EXIT_CONFIG
    write_termination_message(Failure(contract.exit_reason(code), code, None, str(error)), termination_log)
    return code


def _blame(failure: Failure, code: int, lost_rank: int | None) -> Failure:
    """Name a rank that a signal ended (out of memory, for example) rather than a peer that crashed because of it."""
    if failure.exit_code != contract.EXIT_RANK_CRASH or lost_rank in (None, failure.rank):
        return failure
    message = f"rank {lost_rank} was ended by a signal from outside; after it, {failure.message}"
    return Failure(contract.exit_reason(code), code, lost_rank, message)
