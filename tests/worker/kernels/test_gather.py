"""A decode's start on the device against torch."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.kernels.gather import Gathered, gather, gather_reference
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline


@pytest.mark.parametrize(("block_size", "blocks"), [(16, 5), (1, 300), (5, 40)])
def test_rows_are_gathered_as_torch_does_it(block_size: int, blocks: int) -> None:
    generator = torch.Generator().manual_seed(1)
    columns = torch.randint(0, 100, (7, 4), generator=generator)
    columns[:, 2] = torch.randint(1, blocks * block_size + 1, (7,), generator=generator)
    tables = torch.randint(0, 50, (7, blocks), generator=generator, dtype=torch.int32)
    rows = torch.tensor([6, 0, 3, 6])
    found, right = (Gathered.allocate(5, blocks, torch.device("cpu")).first(4) for _ in range(2))
    for run, out in ((gather, found), (gather_reference, right)):
        run(rows, columns[:, 0], columns[:, 2], tables, block_size, out)
    for name in ("tokens", "positions", "cells", "context_lens"):
        assert getattr(found, name).tolist() == getattr(right, name).tolist()
    for row, length in enumerate(columns[rows, 2].tolist()):
        held = -(-length // block_size)
        assert found.block_tables[row, :held].tolist() == right.block_tables[row, :held].tolist()
        assert not found.block_tables[row, held:].any()


def test_it_compiles_for_the_gpus() -> None:
    pointers = {"tokens": "*i64", "positions": "*i64", "cells": "*i64", "context_lens": "*i32", "block_tables": "*i32"}
    columns = {"rows": "*i64", "last_token": "*i64", "length": "*i64", "slot_tables": "*i32"}
    numbers = dict.fromkeys(("column_stride", "slot_stride", "row_stride", "block_size"), "i32")
    signature = {**columns, **pointers, **numbers}
    kernel = "lockstep_worker.kernels.gather:_gather"
    compile_offline(Specialisation(kernel, signature, {"TILE": 128}, 1, capabilities=(HOPPER, BLACKWELL)))
