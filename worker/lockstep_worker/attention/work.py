"""Which tokens a program of paged attention has, in batches where sequences bring several.

Of the example in `batch`, two tokens an assignment: sequence 0 decodes by itself, sequence 1 has two assignments.

    singles   [0 0]
    chunks    [1 0]  [1 2]
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lockstep_worker.attention.batch import HostBatch

Int32 = npt.NDArray[np.int32]


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
