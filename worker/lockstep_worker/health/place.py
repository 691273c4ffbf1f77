"""Where a rank's loop stands: what `/healthz` tells a peer, and what two ranks are compared by. It knows no loop."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Stage(enum.IntEnum):
    """The parts of the loop, in the order that it passes them between the posting of two exchanges."""

    LOADING = 0
    COLLECT = 1
    UPDATE = 2
    EXCHANGE = 3
    ADMIT = 4
    SCHEDULE = 5
    FORWARD = 6
    IDLE = 7


class Place(NamedTuple):
    """A loop's place; the lesser of two is further behind."""

    step: int
    """The step whose exchange was posted last."""
    stage: Stage

    def __str__(self) -> str:
        """Name it for people, such as `the forward of step 812`."""
        match self.stage:
            case Stage.LOADING:
                return "the load"
            case Stage.IDLE:
                return f"the idle wait after step {self.step}"
            case Stage.COLLECT | Stage.UPDATE:  # the tail of a step runs under the next step's exchange
                return f"the {self.stage.name.lower()} of step {self.step - 1}"
            case _:
                return f"the {self.stage.name.lower()} of step {self.step}"


LOADING = Place(0, Stage.LOADING)
