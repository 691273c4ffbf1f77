"""How a rank waits: awake while there is work, asleep while there is none.

MPI has no wait that sleeps and can be interrupted, so both forms poll; the idle one backs off to a millisecond, which
costs one or two percent of a core. Rank 0 parks in its link's own poll, which the kernel wakes, and wakes the others
with a bell.
"""

from __future__ import annotations

import time

from lockstep_worker.parallel.comm import Comm, Pending, Waiting

BEAT_S = 1.0
"""How often rank 0 opens an exchange while the group is parked, so that its peers know that it lives."""
_SPINS = 50
_NAP_S = 50e-6
_IDLE_NAP_S = 1e-3


def wait_awake(pending: Waiting) -> None:
    """Wait for an exchange of a group at work: yield first, then take short naps, so that others can run."""
    for _ in range(_SPINS):
        if pending.done():
            return
        time.sleep(0)
    while not pending.done():
        time.sleep(_NAP_S)


def wait_asleep(pending: Waiting) -> None:
    """Wait for an exchange of a parked group that brings no news: a beat."""
    while not pending.done():
        time.sleep(_IDLE_NAP_S)


class Bell:
    """Rank 0's way to wake its parked peers all at once.

    An allgather takes several rounds, more in a larger group, and each round would wait for the naps of the ranks in
    it. So rank 0 first rings, and who hears the bell goes through all rounds awake.

    Args:
        comm: the group.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._heard: Waiting | None = None

    def ring(self) -> None:
        """Rank 0, with an exchange that brings news to a parked group."""
        self._comm.ring()

    def wait(self, pending: Pending) -> None:
        """Wait for an exchange of a parked group: asleep until the bell rings or, on a beat, to its end."""
        if self._comm.rank == 0:
            return wait_asleep(pending)
        if self._heard is None:
            self._heard = self._comm.listen()
        while not (self._heard.done() or pending.done()):
            time.sleep(_IDLE_NAP_S)
        return wait_awake(pending)

    def settle(self) -> None:
        """Take the bell that came with news, heard or not yet, so that it wakes nobody from the next park."""
        if self._heard is not None:
            wait_awake(self._heard)
            self._heard = None
