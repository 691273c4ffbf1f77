"""Why a pod or container cannot start, as the reasons that `kubectl get pods` shows."""

from __future__ import annotations


class AgentError(Exception):
    """Anything that this agent reports on purpose."""


class ConfigError(AgentError):
    """A container cannot be made yet or ever; becomes `state.waiting` and is tried again.

    Attributes:
        reason: one CamelCase word, e.g. `CreateContainerConfigError`.
    """

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


class UnsupportedPod(AgentError):
    """The pod asks for something that this agent cannot do; the pod fails with this message."""
