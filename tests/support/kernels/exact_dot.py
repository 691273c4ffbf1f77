"""Makes the products of Triton's interpreter alike in all rows, as a tensor core's are.

The interpreter multiplies by numpy, whose BLAS may add up the last rows of a tile in another order than the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def make_dots_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply in float64, whose rounding is lost in float32; nothing changes on a GPU."""

    def create_dot(builder: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
        return TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
