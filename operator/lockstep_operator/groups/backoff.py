"""When a broken group's place may be filled again. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from lockstep_operator.api.spec import RestartPolicy
from lockstep_operator.api.status import Failure, GroupStatus, format_time, parse_time
from lockstep_worker.contract import EXIT_CONFIG

MAX_BACKOFF_S = 600


def is_exhausted(history: GroupStatus, policy: RestartPolicy) -> bool:
    """Whether a place may not be filled again before its restart window has moved on.

    A wrong configuration counts as exhausted at once: starting again with the same one cannot help.
    """
    failure = history.last_failure
    if failure is None:
        return False
    return failure.exit_code == EXIT_CONFIG or len(history.failures) > policy.max_restarts


def find_next_try(history: GroupStatus, policy: RestartPolicy) -> datetime:
    """Find when the place of a group that broke may be filled again.

    Args:
        history: of a place with at least one failure.
        policy: the deployment's restart policy.
    """
    if is_exhausted(history, policy):
        misconfigured = history.last_failure is not None and history.last_failure.exit_code == EXIT_CONFIG
        blocking = history.failures[-1] if misconfigured else history.failures[-(policy.max_restarts + 1)]
        return parse_time(blocking) + timedelta(seconds=policy.window_seconds)
    delay_s = policy.backoff_seconds * 2 ** (len(history.failures) - 1)
    return parse_time(history.failures[-1]) + timedelta(seconds=min(delay_s, MAX_BACKOFF_S))


def add_failure(failures: tuple[str, ...], failure: Failure, policy: RestartPolicy) -> tuple[str, ...]:
    """Add a failure to a place's history and drop those that the window has left behind."""
    horizon = format_time(parse_time(failure.time) - timedelta(seconds=policy.window_seconds))
    kept = [time for time in failures if time > horizon]
    return (*kept, failure.time)[-(policy.max_restarts + 1) :]
