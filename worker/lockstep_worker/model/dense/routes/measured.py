"""The cuts that were measured, as data beside this file."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from lockstep_worker.kernels.decode.tiles import Tile
from lockstep_worker.kernels.decode.vector import Vector
from lockstep_worker.model.dense.routes.uses import Use

TileKey = tuple[int | None, Use, int, int]
"""Bucket of rows, use, the weight's rows and its length."""
VectorKey = tuple[Use, int, int]


@cache
def tiles() -> dict[TileKey, Tile | None]:
    """By what they cut; None is torch's own multiplication."""
    return {
        (one["rows"], one["use"], one["out"], one["length"]): one["tile"] and Tile(**one["tile"])
        for one in _read()["tiles"]
    }


@cache
def vectors() -> dict[VectorKey, Vector]:
    """By use, the weight's rows and its length."""
    return {
        (one["use"], one["out"], one["length"]): Vector(rows=one["rows"], warps=one["warps"])
        for one in _read()["vectors"]
    }


def _read() -> Any:
    return json.loads(files(__package__).joinpath("h200.json").read_text())
