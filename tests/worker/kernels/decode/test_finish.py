"""The choice among tiles."""

from __future__ import annotations

import torch

from lockstep_worker.kernels.decode.finish import choose, choose_reference


def test_the_highest_is_chosen_and_of_equals_the_lowest_id() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0], [-5.0, -4.0, -6.0], [2.0, 2.0, 2.0]])
    ids = torch.tensor([[5, 40, 70], [1, 33, 90], [31, 63, 95]], dtype=torch.int32)
    tokens = torch.zeros(4, dtype=torch.int64)
    choose(values, ids, tokens[:3])
    assert tokens.tolist() == [40, 33, 31, 0]
    assert choose_reference(values, ids).tolist() == tokens[:3].tolist()
