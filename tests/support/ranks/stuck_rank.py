"""The product's rank, but rank 1 gets stuck in Python in the middle of its twentieth forward. For `test_hang`."""

from __future__ import annotations

import itertools
import os
import sys
import time

from torch import Tensor

from lockstep_worker.attention.batch import PackedBatch
from lockstep_worker.model.forward import Model
from lockstep_worker.rank.__main__ import main

_NUM_GOOD = 19
_forward = Model.forward
_calls = itertools.count()


def forward(self: Model, batch: PackedBatch) -> Tensor:
    if next(_calls) == _NUM_GOOD:
        while True:
            time.sleep(60)
    return _forward(self, batch)


if __name__ == "__main__":
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        Model.forward = forward  # type: ignore[method-assign]
    sys.exit(main())
