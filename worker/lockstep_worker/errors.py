"""Errors that Lockstep's worker raises on purpose.

LockstepError
|-- ConfigError         the configuration is wrong; `problems` lists every fault at once
|-- RequestError        one request is wrong; carries the field and, where there is one, the limit
|-- UnsupportedModel    the model cannot be served right, with the reason
|-- RankDiverged        ranks that must agree do not; the group cannot go on
`-- NoFreeBlocks        the block pool cannot give what was asked; the scheduler preempts
"""

from __future__ import annotations


class LockstepError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(LockstepError):
    """The configuration is wrong.

    Args:
        problems: one sentence a fault, each naming the field and the limit.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RequestError(LockstepError):
    """One request cannot be served; only that request fails.

    Args:
        message: names the field and the limit, for the person who sent it.
        field: the field's name in the API, or None when no single field is at fault.
        status: the HTTP status that says it.
    """

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.status = status


class UnsupportedModel(LockstepError):
    """The model cannot be served right by this engine."""


class RankDiverged(LockstepError):
    """Ranks that must hold the same state do not."""


class NoFreeBlocks(LockstepError):
    """The block pool has fewer free blocks than were asked for."""
