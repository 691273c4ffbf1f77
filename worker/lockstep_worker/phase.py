"""The phases of a rank's loop, and where a loop stands: one type for the hang report, the metrics and the pages.

The loop enters a phase; metrics book the host's time to it, `/healthz` tells it to peers, and two ranks that hang are
compared by it. This module knows no loop.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Phase(enum.IntEnum):
    """In the order in which the loop passes them between the posting of two exchanges."""

    LOAD = 0
    """The model is loaded; the loop has not begun."""
    COLLECT = 1
    """What the previous run drew comes to the host."""
    UPDATE = 2
    """The slot table takes it in."""
    PUBLISH = 3
    """One message goes to the frontend; what ended is freed."""
    EXCHANGE = 4
    """The wait for all ranks' rows, and for the payload if one was announced."""
    ROUTE = 5
    """New requests go to the queue of the data replica that will serve them."""
    SCHEDULE = 6
    """Who takes part in the next run."""
    FORWARD = 7
    """The run starts: one forward with sampling behind it."""
    IDLE = 8
    """The group is parked."""

    @property
    def label(self) -> str:
        """The name that metrics, reports and `/healthz` show."""
        return self.name.lower()


STEP_PHASES = (
    Phase.EXCHANGE,
    Phase.ROUTE,
    Phase.SCHEDULE,
    Phase.FORWARD,
    Phase.COLLECT,
    Phase.UPDATE,
    Phase.PUBLISH,
)
"""What a step with work is made of, in the order of one step's data."""


class Standing(NamedTuple):
    """Where a loop stands; the lesser of two is further behind."""

    step: int
    """The step whose exchange was posted last."""
    phase: Phase

    def __str__(self) -> str:
        """Name it for people, such as `the forward of step 812`."""
        match self.phase:
            case Phase.LOAD:
                return "the load"
            case Phase.IDLE:
                return f"the idle wait after step {self.step}"
            case Phase.COLLECT | Phase.UPDATE | Phase.PUBLISH:  # a step's tail runs under the next step's exchange
                return f"the {self.phase.label} of step {self.step - 1}"
            case _:
                return f"the {self.phase.label} of step {self.step}"


LOADING = Standing(0, Phase.LOAD)
