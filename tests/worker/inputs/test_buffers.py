"""A run's inputs lie where they lay, and leave alone what the run before may still be reading."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep_worker.inputs.buffers import Buffers

CPU = torch.device("cpu")


def test_inputs_lie_at_one_address_from_run_to_run() -> None:
    buffers = Buffers({"positions": (8, np.int64)}, CPU)
    addresses = set()
    for count in (8, 3, 5):
        buffers.turn()
        filled = buffers.fill("positions", np.arange(count))
        assert filled.tolist() == list(range(count))
        addresses.add(filled.data_ptr())
    assert len(addresses) == 1


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_input_keeps_the_shape_of_what_it_is_filled_with(rows: int) -> None:
    buffers = Buffers({"tables": (12, np.int32)}, CPU)
    filled = buffers.fill("tables", np.ones((rows, 4), dtype=np.int32))
    assert filled.shape == (rows, 4)


def test_an_input_grows_where_it_is_asked_to_and_only_then_lies_elsewhere() -> None:
    buffers = Buffers({"assignments": (4, np.int32), "rows": (4, np.int32)}, CPU)
    rows = buffers.fill("rows", np.arange(4))
    addresses = []
    for count in (2, 1000, 998, 2000):
        many = np.arange(count, dtype=np.int32).reshape(-1, 2)
        buffers.make_room("assignments", count)
        filled = buffers.fill("assignments", many)
        assert (filled.dtype, filled.tolist()) == (torch.int32, many.tolist())
        addresses.append(filled.data_ptr())
    assert addresses[0] != addresses[1] == addresses[2] == addresses[3]
    assert buffers.fill("rows", np.arange(4)).data_ptr() == rows.data_ptr()


def test_a_run_s_inputs_leave_the_host_memory_of_the_run_before_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without memory, in place of one whose copies may still be under way."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    buffers = Buffers({"rows": (3, np.int64)}, torch.device("meta"))
    halves = buffers._inputs["rows"].arrays
    written = []
    for run in range(1, 5):
        buffers.turn()
        before = [half.copy() for half in halves]
        buffers.fill("rows", np.full(3, run))
        [changed] = [index for index in range(2) if not np.array_equal(halves[index], before[index])]
        written.append(changed)
    assert written in ([0, 1, 0, 1], [1, 0, 1, 0])
