"""The cuts that were measured, as data beside this file."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes.uses import Use

BUCKETS = (64, 256)
"""Row counts that were measured, each for all above the one before."""


@cache
def tiles() -> dict[tuple[int, Use, int, int], Tile | None]:
    """By bucket, use, the weight's rows and its length; None is torch's own multiplication."""
    return {
        (one["rows"], one["use"], one["out"], one["length"]): one["tile"] and Tile(**one["tile"])
        for one in _read()["tiles"]
    }


@cache
def vectors() -> dict[tuple[Use, int, int], Vector]:
    """By use, the weight's rows and its length."""
    return {
        (one["use"], one["out"], one["length"]): Vector(rows=one["rows"], warps=one["warps"])
        for one in _read()["vectors"]
    }


def _read() -> Any:
    return json.loads(files(__package__).joinpath("h200.json").read_text())
