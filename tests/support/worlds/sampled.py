"""Device columns filled from parameters, and the sampler's parts worked out once more, one row and one id at a time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.sampler import draw
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.params import Needs, SamplingParams

ALL = Needs(sampling=True, truncation=True, min_tokens=True, bias=True)
EVERYTHING = dataclasses.replace(ALL, penalties=True)
WIDTH = 1000


class Rows:
    """One row of columns for each set of parameters."""

    PROMPT = 5

    def __init__(
        self,
        params: list[SamplingParams],
        lengths: list[int] | None = None,
        histories: list[list[int]] | None = None,
        width: int = WIDTH,
    ) -> None:
        """`lengths` make sequences of zeros; `histories` are whole sequences, `PROMPT` tokens of them the prompt."""
        self.columns = Columns(len(params), torch.device("cpu"), width)
        self.rows = torch.arange(len(params))
        for slot, one in enumerate(params):
            tokens = histories[slot] if histories else [0] * (lengths[slot] if lengths else self.PROMPT)
            known = np.array(tokens, dtype=np.int32)
            self.columns.admit({slot: Sequence(slot, one, self.PROMPT, 10**6, known)})

    def draw(self, logits: torch.Tensor, needs: Needs = ALL) -> torch.Tensor:
        return draw(logits, self.rows, self.columns.length[self.rows], self.columns, needs)


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


def shape_one_by_one(logits: np.ndarray, params: SamplingParams, history: list[int], prompt: int) -> np.ndarray:
    """One row through bias, penalties and bans of `min_tokens`, one id at a time, in Python's own numbers."""
    pairs = enumerate(logits.astype(np.float64).tolist())
    return np.array([_shape_one(token, logit, params, history, prompt) for token, logit in pairs])


def _shape_one(token: int, logit: float, params: SamplingParams, history: list[int], prompt: int) -> float:
    if len(history) - prompt < params.min_tokens and token in params.end_ids + params.stop_token_ids:
        return -math.inf
    bias = dict(params.logit_bias).get(token, 0.0)
    logit += {100.0: 1e5, -100.0: -math.inf}.get(bias, bias)
    if token in history:
        logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
    times = history[prompt:].count(token)
    return logit - params.frequency_penalty * times - params.presence_penalty * bool(times)


_MASK, _LOW = (1 << 64) - 1, (1 << 32) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def exponential_one(seed: int, index: int, column: int) -> float:
    """One number of the noise, by Python's own integers."""
    key = _splitmix64(seed + _GOLDEN * index)
    bits = column * 0x9E3779B1 + key & _LOW
    bits = (bits ^ bits >> 16) * 0x7FEB352D & _LOW
    bits = (bits ^ bits >> 15 ^ key >> 32) * 0x846CA68B & _LOW
    return -math.log1p(-((bits ^ bits >> 16) + 0.5) * 2.0**-32)


def _splitmix64(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
