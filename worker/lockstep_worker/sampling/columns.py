"""The device half of the slot table: what sampling and finishing need of every request, one row a slot.

Rows are staged at admission and go to the device together, before the next forward, in two copies however many they
are; they are read by index, and nothing here is per step. Host counts say which steps of the sampler nobody needs, so
that a greedy batch pays for an arg-max and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep_worker.sampling.counts import TokenCounts
from lockstep_worker.wire.params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams

NO_TOKEN = -1
MAX_BIAS = 100.0
FORCED = 1e5
"""What a bias of 100 adds: more than logits differ by, and little enough that forced ids keep their order."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Which parts of the sampler some row of a batch asks for; known on the host, so that no device sync decides it."""

    sampling: bool
    truncation: bool
    min_tokens: bool
    bias: bool = False
    penalties: bool = False


@dataclass(frozen=True, slots=True)
class _Staged:
    """A row on its way to the device."""

    params: SamplingParams
    tokens: npt.NDArray[np.int32]
    prompt_length: int
    limit: int

    def integers(self) -> tuple[int, ...]:
        """In the order of `Columns`."""
        params = self.params
        return (
            int(self.tokens[-1]),
            self.tokens.size,
            self.limit,
            self.prompt_length + params.min_tokens,
            params.top_k,
            params.seed,
            *_padded(params.end_ids),
            *_padded(params.stop_token_ids),
        )

    def floats(self) -> tuple[float, ...]:
        """In the order of `Columns`."""
        params = self.params
        return (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )


class Columns:
    """Per-slot device columns, views of one table of integers and one of floats. S slots, V vocabulary.

    Args:
        num_slots: S.
        device: where the sampler runs.
        vocab_size: V.
    """

    def __init__(self, num_slots: int, device: torch.device, vocab_size: int) -> None:
        self.device = device
        ids = MAX_STOP_TOKEN_IDS
        self._integers = torch.zeros((num_slots, 6 + 2 * ids), dtype=torch.int64, device=device)
        # last_token: a decode reads its newest token here, so that it need not travel to the host and back.
        # length counts it; limit is the length that ends with LENGTH; below min_length no end id is drawn.
        self.last_token, self.length, self.limit, self.min_length, self.top_k, self.seed = self._integers[:, :6].unbind(
            1
        )
        self.end_ids, self.stop_ids = self._integers[:, 6:].chunk(2, dim=1)
        self._floats = torch.zeros((num_slots, 6), dtype=torch.float32, device=device)
        (
            self.temperature,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
        ) = self._floats.unbind(1)
        self.finished = torch.zeros(num_slots, dtype=torch.uint8, device=device)
        """The finish code once the device has set it: the row's later tokens mean nothing."""
        self.bias_ids = torch.full((num_slots, MAX_LOGIT_BIAS), NO_TOKEN, device=device)
        self.bias = torch.zeros((num_slots, MAX_LOGIT_BIAS), dtype=torch.float32, device=device)
        """What is added to the logits of `bias_ids`; 0 where there is none."""
        self.counts = TokenCounts(num_slots, vocab_size, device)
        self._biased: set[int] = set()
        self._staged: dict[int, _Staged] = {}

    def stage(
        self, slot: int, params: SamplingParams, *, tokens: npt.NDArray[np.int32], prompt_length: int, limit: int
    ) -> None:
        """Note a row's new owner; `flush` overwrites all that its former owner left. Touches no device.

        Args:
            slot: the row.
            params: the request's parameters.
            tokens: all tokens known so far; more than the prompt after a preemption.
            prompt_length: tokens of the prompt; `min_tokens` and the output's penalties count from here.
            limit: the length that ends the request.
        """
        self._staged[slot] = _Staged(params, tokens, prompt_length, limit)

    def flush(self) -> None:
        """Write the staged rows, behind all that the device was told before."""
        if not self._staged:
            return
        staged, self._staged = self._staged, {}
        rows = upload(np.fromiter(staged, dtype=np.int64, count=len(staged)), self.device)
        integers = np.array([row.integers() for row in staged.values()], dtype=np.int64)
        floats = np.array([row.floats() for row in staged.values()], dtype=np.float32)
        self._integers.index_copy_(0, rows, upload(integers, self.device))
        self._floats.index_copy_(0, rows, upload(floats, self.device))
        self.finished.index_fill_(0, rows, 0)
        for slot, row in staged.items():
            self._write_bias(slot, row.params.logit_bias)
            if asks_for_penalties(row.params):
                self.counts.fill(slot, row.tokens, row.prompt_length)
            else:
                self.counts.clear(slot)

    def _write_bias(self, slot: int, bias: tuple[tuple[int, float], ...]) -> None:
        if slot in self._biased:
            self.bias_ids[slot] = NO_TOKEN
            self.bias[slot] = 0
            self._biased.discard(slot)
        if bias:
            self._biased.add(slot)
            ids, values = zip(*bias, strict=True)
            self.bias_ids[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int64, device=self.device)
            self.bias[slot, : len(ids)] = torch.tensor([_addend(value) for value in values], device=self.device)


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor


def asks_for_penalties(params: SamplingParams) -> bool:
    """Say whether the counts of a request's tokens matter."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def _padded(ids: tuple[int, ...]) -> tuple[int, ...]:
    return (*ids, *(NO_TOKEN,) * (MAX_STOP_TOKEN_IDS - len(ids)))


def _addend(value: float) -> float:
    if abs(value) < MAX_BIAS:
        return value
    return FORCED if value > 0 else float("-inf")
