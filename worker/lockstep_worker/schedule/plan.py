"""What one run computes: host integers, the same on every rank of a data replica.

An example, of a row that decodes, one that decodes with two drafts, a prompt's middle chunk and a prompt's last one:

    rows    starts  counts  draws
    3       812     1       1       its newest token
    0       45      3       3       its newest token and two drafts: brings one, two or three tokens
    7       0       256     0       more of the prompt is left
    5       512     88      1       reaches the prompt's end, so it draws

`num_decodes` is 2: decodes stand first, because their newest token is on the device only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lockstep_worker.schedule.sequence import Int32, Int64


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows of one run, in packed order."""

    rows: Int32
    """Their slots."""
    starts: Int32
    """Each row's first position in this run."""
    counts: Int32
    """How many tokens it computes."""
    draws: Int32
    """How many tokens it brings at most; 0 where its newest token is not reached."""
    num_decodes: int
    max_draws: int = 1
    """The largest of `draws`, or 1: more only where some row has drafts."""

    @property
    def is_empty(self) -> bool:
        """Whether nobody has anything to run."""
        return not self.rows.size

    @property
    def num_tokens(self) -> int:
        """How many tokens the run computes."""
        is_one_each = self.num_decodes == self.rows.size and self.max_draws == 1
        return self.rows.size if is_one_each else int(self.counts.sum())


_NOTHING = np.empty(0, dtype=np.int32)
EMPTY_PLAN = Plan(rows=_NOTHING, starts=_NOTHING, counts=_NOTHING, draws=_NOTHING, num_decodes=0)


def offsets_in_rows(counts: Int32) -> Int64:
    """Say of each entry how many of its own row stand before it, for rows of these lengths behind one another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
