"""Errors that the operator raises on purpose.

OperatorError
|-- SettingsError     the operator's own settings are wrong; `problems` lists every fault
|-- SpecError         a ServingDeployment is wrong; `problems` lists every fault with its field
`-- KubeError         the API server refused or could not be reached; carries the HTTP status
|-- NotFound      there is no such object (or no such API)
`-- Conflict      somebody else wrote in between, or owns what was to be written
"""

from __future__ import annotations


class OperatorError(Exception):
    """Root of all errors raised on purpose."""


class SettingsError(OperatorError):
    """The operator's environment is wrong; `problems` holds one sentence a fault, each naming the variable."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class SpecError(OperatorError):
    """A ServingDeployment is wrong; `problems` holds one sentence a fault, each naming the field and the limit."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class KubeError(OperatorError):
    """The API server refused a call or did not answer it.

    Args:
        status: the HTTP status, 0 when no answer came.
        message: what the server said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class NotFound(KubeError):
    """There is no such object, or the API is not served."""


class Conflict(KubeError):
    """The object changed since it was read, exists already, or its fields belong to somebody else."""
