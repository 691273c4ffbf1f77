"""Device columns filled from parameters, and the sampler's parts worked out once more, one row and one id at a time."""

from __future__ import annotations

import math

import numpy as np
import torch

from lockstep_worker.request import SamplingParams
from lockstep_worker.sampling.columns import Columns, Needs
from lockstep_worker.sampling.sampler import draw

ALL = Needs(sampling=True, truncation=True, min_tokens=True)


class Rows:
    """One row of columns for each set of parameters."""

    PROMPT = 5

    def __init__(self, params: list[SamplingParams], lengths: list[int] | None = None) -> None:
        self.columns = Columns(len(params), torch.device("cpu"))
        self.rows = torch.arange(len(params))
        for slot, one in enumerate(params):
            length = lengths[slot] if lengths else self.PROMPT
            self.columns.write(slot, one, prompt_length=self.PROMPT, length=length, limit=10**6, last_token=0)

    def draw(self, logits: torch.Tensor, needs: Needs = ALL) -> torch.Tensor:
        return draw(logits, self.rows, self.columns, needs)


def keep_one_by_one(logits: np.ndarray, params: SamplingParams) -> set[int]:
    """The ids that top-k, then top-p, then min-p leave of one row of scaled logits; float32 like the sampler's."""
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    if params.top_k:
        order = order[: params.top_k]
    weights = np.exp((logits[order] - logits[order[0]]).astype(np.float64))
    probability = weights / weights.sum()
    kept, before = {order[0]}, 0.0
    for token, share in zip(order, probability, strict=True):
        if before < params.top_p and share >= np.float32(params.min_p) * probability[0]:
            kept.add(token)
        before += share
    return kept


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def exponential_one(seed: int, index: int, column: int) -> float:
    """One number of the noise, by Python's own integers."""
    bits = _splitmix64(_splitmix64(seed + _GOLDEN * index) + _GOLDEN * (column + 1))
    return -math.log1p(-((bits >> 32) + 0.5) * 2.0**-32)


def _splitmix64(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
