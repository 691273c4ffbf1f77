"""The device half of the slot table: what sampling and finishing need of every request, one row a slot.

Rows are written at admission and read by index; nothing here is per step. Host counts say which steps of the sampler
nobody needs, so that a greedy batch pays for an arg-max and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep_worker.request import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams
from lockstep_worker.sampling.counts import TokenCounts

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


class Columns:
    """Per-slot device columns. S slots, V vocabulary.

    Args:
        num_slots: S.
        device: where the sampler runs.
        vocab_size: V.
    """

    def __init__(self, num_slots: int, device: torch.device, vocab_size: int) -> None:
        def column(dtype: torch.dtype, *shape: int, fill: float = 0) -> Tensor:
            return torch.full((num_slots, *shape), fill, dtype=dtype, device=device)

        self.device = device
        self.last_token = column(torch.int64)
        """The newest token; a decode reads it here, so that it need not travel to the host and back."""
        self.length = column(torch.int64)
        """Tokens of the sequence, the newest included."""
        self.limit = column(torch.int64)
        """The length that ends the request with LENGTH."""
        self.min_length = column(torch.int64)
        """No end id is drawn while the sequence is shorter than this."""
        self.end_ids = column(torch.int64, MAX_STOP_TOKEN_IDS, fill=NO_TOKEN)
        self.stop_ids = column(torch.int64, MAX_STOP_TOKEN_IDS, fill=NO_TOKEN)
        self.finished = column(torch.uint8)
        """The finish code once the device has set it: the row's later tokens mean nothing."""
        self.temperature = column(torch.float32)
        self.top_p = column(torch.float32, fill=1)
        self.top_k = column(torch.int64)
        self.min_p = column(torch.float32)
        self.seed = column(torch.int64)
        self.repetition_penalty = column(torch.float32, fill=1)
        self.presence_penalty = column(torch.float32)
        self.frequency_penalty = column(torch.float32)
        self.bias_ids = column(torch.int64, MAX_LOGIT_BIAS, fill=NO_TOKEN)
        self.bias = column(torch.float32, MAX_LOGIT_BIAS)
        """What is added to the logits of `bias_ids`; 0 where there is none."""
        self.counts = TokenCounts(num_slots, vocab_size, device)

    def write(
        self, slot: int, params: SamplingParams, *, tokens: npt.NDArray[np.int32], prompt_length: int, limit: int
    ) -> None:
        """Fill a row at admission, overwriting all that its former owner left.

        Args:
            slot: the row.
            params: the request's parameters.
            tokens: all tokens known so far; more than the prompt after a preemption.
            prompt_length: tokens of the prompt; `min_tokens` and the output's penalties count from here.
            limit: the length that ends the request.
        """
        self.last_token[slot] = int(tokens[-1])
        self.length[slot] = tokens.size
        self.limit[slot] = limit
        self.min_length[slot] = prompt_length + params.min_tokens
        self.end_ids[slot] = self._padded(params.end_ids)
        self.stop_ids[slot] = self._padded(params.stop_token_ids)
        self.finished[slot] = 0
        self.temperature[slot] = params.temperature
        self.top_p[slot] = params.top_p
        self.top_k[slot] = params.top_k
        self.min_p[slot] = params.min_p
        self.seed[slot] = params.seed
        self.repetition_penalty[slot] = params.repetition_penalty
        self.presence_penalty[slot] = params.presence_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self._write_bias(slot, params.logit_bias)
        if asks_for_penalties(params):
            self.counts.fill(slot, tokens, prompt_length)
        else:
            self.counts.clear(slot)

    def _write_bias(self, slot: int, bias: tuple[tuple[int, float], ...]) -> None:
        self.bias_ids[slot] = NO_TOKEN
        self.bias[slot] = 0
        if bias:
            ids, values = zip(*bias, strict=True)
            self.bias_ids[slot, : len(ids)] = torch.tensor(ids, dtype=torch.int64, device=self.device)
            self.bias[slot, : len(ids)] = torch.tensor([_addend(value) for value in values], device=self.device)

    def _padded(self, ids: tuple[int, ...]) -> Tensor:
        padding = (NO_TOKEN,) * (MAX_STOP_TOKEN_IDS - len(ids))
        return torch.tensor((*ids, *padding), dtype=torch.int64, device=self.device)


def asks_for_penalties(params: SamplingParams) -> bool:
    """Say whether the counts of a request's tokens matter."""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def _addend(value: float) -> float:
    if abs(value) < MAX_BIAS:
        return value
    return FORCED if value > 0 else float("-inf")
