"""What paged attention takes beside queries, keys and values.

Shape legend: S sequences, M most blocks a sequence has, P programs' assignments, H query heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """The sequences that are attended, on the device."""

    block_tables: Tensor
    """int32 [S, M]"""
    context_lens: Tensor
    """int32 [S], this run's tokens included"""
    query_start: Tensor
    """int32 [S+1]: sequence s has the packed tokens query_start[s] to query_start[s+1]"""
    assignments: Tensor | None
    """int32 [P, 2]: a program's sequence and the first of the sequence's tokens that it has; None is a program a
    sequence, all of which bring one token."""

    @property
    def num_assignments(self) -> int:
        """P."""
        return len(self.context_lens if self.assignments is None else self.assignments)


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made."""

    scaling: float
    sliding_window: int | None = None
    """a token sees itself and the `sliding_window - 1` tokens before it"""
    softcap: float | None = None
    """scores become softcap * tanh(scores / softcap)"""
    sinks: Tensor | None = None
    """[H]: a score a head that takes part in the softmax and brings no value"""


@dataclass(frozen=True, slots=True)
class Partials:
    """Room for what split programs found, one row for each row of their tiles."""

    sums: Tensor
    """float32 [rows, D]: weighted values, not divided yet"""
    marks: Tensor
    """float32 [rows, 2]: the largest score and the sum of weights"""

    @staticmethod
    def allocate(rows: int, head_dim: int, device: torch.device) -> Partials:
        """Make room for as many rows."""
        sums = torch.empty((rows, head_dim), dtype=torch.float32, device=device)
        return Partials(sums, torch.empty((rows, 2), dtype=torch.float32, device=device))
