"""How a rank waits: awake while there is work, asleep while there is none.

MPI has no wait that sleeps and can be interrupted, so both forms poll; the idle one backs off to a millisecond, which
costs about one percent of a core and wakes well within two milliseconds. Rank 0 parks in its link's own poll, which
the kernel wakes, and lets the others in by entering the exchange.
"""

from __future__ import annotations

import time

from lockstep_worker.dist.comm import Pending

BEAT_S = 1.0
"""How often rank 0 opens an exchange while the group is parked, so that its peers know that it lives."""
_SPINS = 50
_NAP_S = 50e-6
_IDLE_NAP_S = 1e-3


def wait_awake(pending: Pending) -> None:
    """Wait for an exchange of a group at work: yield first, then take short naps, so that others can run."""
    for _ in range(_SPINS):
        if pending.done():
            return
        time.sleep(0)
    while not pending.done():
        time.sleep(_NAP_S)


def wait_asleep(pending: Pending) -> None:
    """Wait for an exchange of a parked group."""
    while not pending.done():
        time.sleep(_IDLE_NAP_S)
