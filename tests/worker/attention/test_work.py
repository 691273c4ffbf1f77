"""Assignments cover each token once."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep_worker.attention.batch import HostBatch
from lockstep_worker.attention.work import assign_chunks, assign_singles


def host_batch(*lengths: tuple[int, int]) -> HostBatch:
    """Of sequences given as (tokens that it brings, its context)."""
    counts, contexts = (np.array(column) for column in zip(*lengths, strict=True))
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    return HostBatch(starts, contexts.astype(np.int32), int(counts.max()), int(contexts.max()))


def test_the_module_s_example() -> None:
    host = host_batch((1, 6), (3, 3))
    assert assign_singles(host).tolist() == [[0, 0]]
    assert sorted(assign_chunks(host, 2).tolist()) == [[1, 0], [1, 2]]


@pytest.mark.parametrize("queries", [1, 2, 5, 64])
def test_each_token_is_assigned_once(queries: int) -> None:
    lengths = [(1, 9), (7, 7), (2, 30), (1, 1), (5, 11), (64, 80)]
    host = host_batch(*lengths)
    tokens = [(int(sequence), 0) for sequence, _ in assign_singles(host)]
    for sequence, first in assign_chunks(host, queries).tolist():
        count = lengths[sequence][0]
        assert first % queries == 0 and first < count
        tokens += [(sequence, token) for token in range(first, min(first + queries, count))]
    assert sorted(tokens) == [(row, token) for row, (count, _) in enumerate(lengths) for token in range(count)]


def test_the_assignments_with_the_most_keys_come_first() -> None:
    host = host_batch((6, 6), (2, 50), (4, 20))
    assert assign_chunks(host, 3).tolist() == [[1, 0], [2, 3], [2, 0], [0, 3], [0, 0]]
