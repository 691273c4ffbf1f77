"""In which part of its life a rank is; moves that make no sense are refused."""

from __future__ import annotations

import enum
import threading


class State(enum.Enum):
    """A rank's state, as `/healthz` shows it."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


_MOVES = {
    State.STARTING: {State.LOADING, State.FAILED},
    State.LOADING: {State.READY, State.DRAINING, State.FAILED},
    State.READY: {State.DRAINING, State.FAILED},
    State.DRAINING: {State.FAILED},
    State.FAILED: set[State](),
}


class Readiness:
    """Holds the state; any thread may read and move it."""

    def __init__(self) -> None:
        self._state = State.STARTING
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    @property
    def healthy(self) -> bool:
        """Whether the rank is able to take part in steps."""
        return self._state in (State.READY, State.DRAINING)

    def move(self, new: State) -> None:
        """Go to another state.

        Raises:
            ValueError: no such move exists; the state stays.
        """
        with self._lock:
            if new not in _MOVES[self._state]:
                raise ValueError(f"a rank that is {self._state.value} cannot become {new.value}")
            self._state = new
