"""What draws depend on, laid out as a worker has it, and memory for their candidates."""

from __future__ import annotations

import torch

from lockstep_worker.kernels.draw import Candidates, DrawInput

NOBODY = 1 << 40
"""Stands behind the slots of a batch: whoever reads there and follows it leaves the process."""


def drawing(temperatures: list[float], device: str = "cpu") -> DrawInput:
    """Rows of these temperatures in slots of no order, whose numbers are views of wider tables."""
    count = len(temperatures)
    generator = torch.Generator().manual_seed(count)
    slots = torch.randperm(count + 3, generator=generator)[:count]
    integers = torch.randint(1 << 62, (count + 3, 5), generator=generator)
    integers[:, 3] %= 1000
    floats = torch.full((count + 3, 3), float("nan"))
    floats[slots, 0] = torch.tensor(temperatures)
    rows = torch.cat((slots, torch.full((64,), NOBODY))).to(device)[:count]
    table = integers.to(device)
    return DrawInput(rows, table[:, 1], table[:, 3], floats.to(device)[:, 0])


def candidates(rows: int, tiles: int, *, drawn: bool) -> Candidates:
    """Memory that a head writes."""
    highs, lows = torch.full((rows, tiles), 7.0), torch.full((rows, tiles), 7.0)
    return Candidates(highs, lows if drawn else None, torch.full((rows, tiles), 7, dtype=torch.int32))


def check_equal(found: Candidates, expected: Candidates) -> None:
    """Fail unless both are the same bits."""
    assert found.lows_nB is not None and expected.lows_nB is not None
    assert torch.equal(found.ids_nB, expected.ids_nB)
    assert torch.equal(found.highs_nB, expected.highs_nB)
    assert torch.equal(found.lows_nB, expected.lows_nB)
