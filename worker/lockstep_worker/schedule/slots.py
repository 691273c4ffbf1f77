"""The slot table: everything the host knows of a running request, as columns of arrays indexed by slot.

Rows never move. A slot's incarnation grows each time it is released, so that a result which was launched for an earlier
owner is recognised and dropped. The device's half is `sampling.columns`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from lockstep_worker.sampling.columns import Columns, Needs, asks_for_penalties
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Sequence:
    """One request from its admission to its end; while it runs, its growing state lives in its slot's row."""

    handle: int
    params: SamplingParams
    prompt_length: int
    limit: int
    """The length that ends it: prompt plus max_tokens, at most the model's context."""
    tokens: Int32
    """The prompt; after a preemption also what was generated before."""
    priority: int = 0
    arrival: int = 0
    """Its number among all requests of the group, given by the scheduler."""
    cached_tokens: int | None = None
    """Tokens of the prompt that were in the prefix cache when it got its first slot; None before."""
    slot: int = -1
    blocks: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, request: NewRequest, max_model_len: int) -> Sequence:
        """Start one from a validated request."""
        prompt = np.array(request.prompt, dtype=np.int32)
        limit = min(prompt.size + request.params.max_tokens, max_model_len)
        return cls(request.handle, request.params, prompt.size, limit, prompt, request.priority)

    @property
    def turn(self) -> tuple[int, int]:
        """Whose turn it is: the least runs first and is sent back last."""
        return self.priority, self.arrival


class SlotTable:
    """Host columns of running requests. S slots, L most tokens of a sequence, M most blocks of a sequence.

    Args:
        num_slots: S.
        max_length: L.
        max_blocks: M.
        device: of the device columns.
        vocab_size: how many token ids there are.
    """

    def __init__(self, num_slots: int, max_length: int, max_blocks: int, device: torch.device, vocab_size: int) -> None:
        self.num_slots = num_slots
        self.device_columns = Columns(num_slots, device, vocab_size)
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.handle: Int64 = np.zeros(num_slots, dtype=np.int64)
        self.incarnation: Int64 = np.zeros(num_slots, dtype=np.int64)
        self.tokens: Int32 = np.zeros((num_slots, max_length), dtype=np.int32)
        self.length: Int32 = np.zeros(num_slots, dtype=np.int32)
        """Tokens that the host knows."""
        self.in_flight: Int32 = np.zeros(num_slots, dtype=np.int32)
        """Tokens launched and not yet collected: 0 or 1, but 2 between a launch and the collect of the one before."""
        self.computed: Int32 = np.zeros(num_slots, dtype=np.int32)
        """Positions whose keys and values are computed or launched."""
        self.limit: Int32 = np.zeros(num_slots, dtype=np.int32)
        self.num_blocks: Int32 = np.zeros(num_slots, dtype=np.int32)
        self.block_table: Int32 = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self.ineligible: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        """Rows whose results take the per-request path; kept current here and nowhere else."""
        self.num_ineligible = 0
        self.logprobs: Int32 = np.full(num_slots, -1, dtype=np.int32)
        """How many best tokens' logprobs a row wants beside its own; -1 is none at all."""
        self.num_with_logprobs = 0
        self._free = list(range(num_slots - 1, -1, -1))
        self._counts = {"sampling": 0, "truncation": 0, "min_tokens": 0, "bias": 0, "penalties": 0}

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def needs(self) -> Needs:
        """Which parts of the sampler the running requests ask for; kept by counting, never scanned."""
        return Needs(*(count > 0 for count in self._counts.values()))

    def place(self, sequence: Sequence) -> int:
        """Give a sequence a slot and fill its row; there must be a free one."""
        slot = self._free.pop()
        sequence.slot = slot
        length = sequence.tokens.size
        self.sequences[slot] = sequence
        self.handle[slot] = sequence.handle
        self.tokens[slot, :length] = sequence.tokens
        self.length[slot] = length
        self.in_flight[slot] = 0
        self.computed[slot] = 0
        self.limit[slot] = sequence.limit
        self.num_blocks[slot] = 0
        self.ineligible[slot] = bool(ineligible_reason(sequence.params))
        self.logprobs[slot] = sequence.params.logprobs
        self._count(sequence.params, 1)
        self.device_columns.stage(
            slot,
            sequence.params,
            tokens=sequence.tokens,
            prompt_length=sequence.prompt_length,
            limit=sequence.limit,
        )
        return slot

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        """Append blocks to a row's table; `Sequence.blocks` keeps the same list."""
        sequence = self.sequence(slot)
        start = len(sequence.blocks)
        self.block_table[slot, start : start + len(blocks)] = blocks
        sequence.blocks.extend(blocks)
        self.num_blocks[slot] = len(sequence.blocks)

    def release(self, slot: int) -> Sequence:
        """Free a slot; the sequence keeps the tokens it has, and the caller its blocks."""
        sequence = self.sequence(slot)
        sequence.tokens = self.tokens[slot, : self.length[slot]].copy()
        sequence.slot = -1
        self._count(sequence.params, -1)
        self.sequences[slot] = None
        self.ineligible[slot] = False
        self.logprobs[slot] = -1
        self.incarnation[slot] += 1
        self._free.append(slot)
        return sequence

    def sequence(self, slot: int) -> Sequence:
        """Return the slot's owner."""
        sequence = self.sequences[slot]
        assert sequence is not None, f"slot {slot} is free"
        return sequence

    def _count(self, params: SamplingParams, step: int) -> None:
        sampling = params.temperature > 0
        self._counts["sampling"] += step * sampling
        self._counts["truncation"] += step * (sampling and (params.top_p < 1 or params.top_k > 0 or params.min_p > 0))
        self._counts["min_tokens"] += step * (params.min_tokens > 0)
        self._counts["bias"] += step * bool(params.logit_bias)
        self._counts["penalties"] += step * asks_for_penalties(params)
        self.num_ineligible += step * bool(ineligible_reason(params))
        self.num_with_logprobs += step * (params.logprobs >= 0)


def ineligible_reason(params: SamplingParams) -> str:
    """Say why a request cannot take the batched update, in the words of `sampler_requests_total`; empty when it can."""
    if params.logprobs >= 0:
        return "logprobs"
    return "stop_words" if params.stop_token_ids else ""
