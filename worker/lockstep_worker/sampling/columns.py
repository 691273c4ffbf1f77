"""The device half of the slot table: what sampling and finishing need of every request, one row a slot.

Rows are written at admission and read by index; nothing here is per step. Host counts say which steps of the sampler
nobody needs, so that a greedy batch pays for an arg-max and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep_worker.request import MAX_STOP_TOKEN_IDS, SamplingParams

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Needs:
    """Which parts of the sampler some row of a batch asks for; known on the host, so that no device sync decides it."""

    sampling: bool
    truncation: bool
    min_tokens: bool


class Columns:
    """Per-slot device columns. S slots.

    Args:
        num_slots: S.
        device: where the sampler runs.
    """

    def __init__(self, num_slots: int, device: torch.device) -> None:
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

    def write(
        self, slot: int, params: SamplingParams, *, prompt_length: int, length: int, limit: int, last_token: int
    ) -> None:
        """Fill a row at admission, overwriting all that its former owner left.

        Args:
            slot: the row.
            params: the request's parameters.
            prompt_length: tokens of the prompt; `min_tokens` counts from here.
            length: tokens known so far; more than the prompt after a preemption.
            limit: the length that ends the request.
            last_token: the newest known token.
        """
        self.last_token[slot] = last_token
        self.length[slot] = length
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

    def _padded(self, ids: tuple[int, ...]) -> Tensor:
        padding = (NO_TOKEN,) * (MAX_STOP_TOKEN_IDS - len(ids))
        return torch.tensor((*ids, *padding), dtype=torch.int64, device=self.device)
