"""Which tokens a program of paged attention has, in batches where sequences bring several, and its way to the device.

Of the example in `batch`, two tokens an assignment: sequence 0 decodes by itself, sequence 1 has two assignments.

    singles   [0 0]
    chunks    [1 0]  [1 2]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep_worker.attention.batch import HostBatch

Int32 = npt.NDArray[np.int32]

_HOST_COPIES = 2
"""A run's copy may still be under way when the next run is planned, but not when the one after that is."""


def assign_singles(host: HostBatch) -> Int32:
    """Give each sequence that brings one token to a program; returns [P, 2], sequence and first token."""
    singles = np.flatnonzero(np.diff(host.query_start) == 1)
    return np.stack((singles, np.zeros_like(singles)), axis=1).astype(np.int32)


def assign_chunks(host: HostBatch, queries: int, fewest: int = 2) -> Int32:
    """Cut the tokens of the sequences that bring `fewest` or more into assignments of `queries` tokens at most.

    Those with the most keys to look at come first, so that the last program to start is a short one.

    Returns:
        [P, 2]: sequence, and the first of the tokens that it brings.
    """
    counts = np.diff(host.query_start)
    chunked = np.flatnonzero(counts >= fewest)
    pieces = -(-counts[chunked] // queries)
    sequence = np.repeat(chunked, pieces)
    first = (np.arange(sequence.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * queries
    ends = host.context_lens[sequence] - counts[sequence] + np.minimum(first + queries, counts[sequence])
    order = np.argsort(-ends, kind="stable")
    return np.stack((sequence[order], first[order]), axis=1).astype(np.int32)


class AssignmentBuffer:
    """Memory for assignments that is kept from run to run: pinned on the host, and at the device.

    Args:
        device: where the runs are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._hosts: list[Tensor] = []
        self._own = torch.empty(0)
        self._turn = 0
        self._grow(256)

    def upload(self, assignments_P2: Int32) -> Tensor:
        """Copy a run's assignments, once a run, without waiting for the device.

        Returns:
            int32 [P, 2] on the device, valid until the next run's are uploaded.
        """
        count = len(assignments_P2)
        if count > len(self._own):
            self._grow(2 * count)
        self._turn = (self._turn + 1) % _HOST_COPIES
        host = self._hosts[self._turn]
        host.numpy()[:count] = assignments_P2
        return self._own[:count].copy_(host[:count], non_blocking=True)

    def _grow(self, count: int) -> None:
        pinned = self._device.type == "cuda"
        self._hosts = [torch.empty((count, 2), dtype=torch.int32, pin_memory=pinned) for _ in range(_HOST_COPIES)]
        self._own = torch.empty((count, 2), dtype=torch.int32, device=self._device)
