"""The slot table: everything the host knows of a running request, as columns of arrays indexed by slot. No torch.

Rows never move. A slot's incarnation grows each time it is released, so that what a run drew for an earlier
owner is recognised and dropped. The device's half is `sampling.columns` and `runner.blocks`; they take newcomers and
granted blocks over before each run.

An example row of a request with a prompt of 3 tokens that decodes, with one run in flight, blocks of 4 tokens:

    handle  length  in_flight  computed  limit  num_blocks  block_table  tokens
    17      5       1          5         35     2           [8 3 . .]    [3 4 5 9 9 . . .]

The host knows 5 tokens; the run in flight computes position 4 and will draw the sixth.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lockstep_worker.schedule.sequence import Int32, Int64, Sequence
from lockstep_worker.wire.params import NEEDS, Needs

_NOTHING_GRANTED: tuple[Int64, Int32] = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)


class SlotTable:
    """Host columns of running requests. S slots, L most tokens of a sequence, M most blocks of a sequence, D drafts.

    Args:
        num_slots: S.
        max_length: L.
        max_blocks: M.
        max_drafts: D, most tokens that may be proposed for a row's next run.
    """

    def __init__(self, num_slots: int, max_length: int, max_blocks: int, *, max_drafts: int = 0) -> None:
        self.num_slots = num_slots
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.handle: Int64 = np.zeros(num_slots, dtype=np.int64)
        self.incarnation: Int64 = np.zeros(num_slots, dtype=np.int64)
        self.tokens: Int32 = np.zeros((num_slots, max_length), dtype=np.int32)
        self.length: Int32 = np.zeros(num_slots, dtype=np.int32)
        """Tokens that the host knows."""
        self.in_flight: Int32 = np.zeros(num_slots, dtype=np.int32)
        """Most tokens that uncollected runs may bring. With a token a run it is 0 or 1, but 2 between a run's start and
        the collect of the one before."""
        self.computed: Int32 = np.zeros(num_slots, dtype=np.int32)
        """Positions whose keys and values are computed or about to be."""
        self.limit: Int32 = np.zeros(num_slots, dtype=np.int32)
        self.num_blocks: Int32 = np.zeros(num_slots, dtype=np.int32)
        self.block_table: Int32 = np.zeros((num_slots, max_blocks), dtype=np.int32)
        self.drafts: Int32 = np.zeros((num_slots, max_drafts), dtype=np.int32)
        """Proposed next tokens, which the row's next run checks."""
        self.num_drafts: Int32 = np.zeros(num_slots, dtype=np.int32)
        self.drafting: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        """Rows that wait for each run's tokens before the next run, so that somebody can propose what follows them."""
        self.ineligible: npt.NDArray[np.bool_] = np.zeros(num_slots, dtype=np.bool_)
        """Rows whose results take the per-request path; kept current here and nowhere else."""
        self.num_ineligible = 0
        self.logprobs: Int32 = np.full(num_slots, -1, dtype=np.int32)
        """How many best tokens' logprobs a row wants beside its own; -1 is none at all."""
        self.num_with_logprobs = 0
        self._free = list(range(num_slots - 1, -1, -1))
        self._asking = dict.fromkeys(NEEDS, 0)
        self._needs: Needs | None = None
        self._newcomers: dict[int, Sequence] = {}
        self._granted: list[Int64] = []

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    @property
    def may_draft(self) -> bool:
        """Whether any row may ever have drafts."""
        return self.drafts.shape[1] > 0

    @property
    def needs(self) -> Needs:
        """Which parts of the sampler the running requests ask for; kept by counting, never scanned."""
        if self._needs is None:
            self._needs = Needs(**{need: count > 0 for need, count in self._asking.items()})
        return self._needs

    def admit(self, sequence: Sequence) -> int:
        """Admission: give a sequence a slot and fill its row; there must be a free one."""
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
        self.num_drafts[slot] = 0
        self.drafting[slot] = False
        self.ineligible[slot] = bool(sequence.reason)
        self.logprobs[slot] = sequence.params.logprobs
        self._count(sequence, 1)
        self._newcomers[slot] = sequence
        return slot

    def take_newcomers(self) -> dict[int, Sequence]:
        """Hand over who was admitted since the last call, by slot: their device rows are still a former owner's."""
        newcomers, self._newcomers = self._newcomers, {}
        return newcomers

    def set_blocks(self, slot: int, blocks: list[int]) -> None:
        """Append blocks to a row's table; `Sequence.blocks` keeps the same list."""
        sequence = self.sequence(slot)
        start = len(sequence.blocks)
        self.block_table[slot, start : start + len(blocks)] = blocks
        sequence.blocks.extend(blocks)
        self.num_blocks[slot] = len(sequence.blocks)
        first = slot * self.block_table.shape[1] + start
        self._granted.append(np.arange(first, first + len(blocks)))

    def append_blocks(self, rows: Int64, blocks: list[int]) -> None:
        """Append one block to each of these rows' tables, as `set_blocks` would row after row; each row once."""
        entries = rows * self.block_table.shape[1] + self.num_blocks[rows]
        self.block_table.reshape(-1)[entries] = blocks
        self.num_blocks[rows] += 1
        sequences = self.sequences
        for slot, block in zip(rows.tolist(), blocks, strict=True):
            sequence = sequences[slot]
            assert sequence is not None, f"slot {slot} is free"
            sequence.blocks.append(block)
        self._granted.append(entries)

    def take_grants(self) -> tuple[Int64, Int32]:
        """Hand over what was written to the block table since the last call: indices into it, flat, and blocks."""
        if not self._granted:
            return _NOTHING_GRANTED
        granted, self._granted = self._granted, []
        entries = granted[0] if len(granted) == 1 else np.concatenate(granted)
        return entries, self.block_table.reshape(-1)[entries]

    def propose(self, slot: int, tokens: Iterable[int]) -> None:
        """Propose a row's next tokens: its next run computes them, and keeps those that it would have drawn itself.

        For rows that are due a decode, whose tokens the host knows all; with overlap only `drafting` rows ever are.
        At most D tokens count, none that the limit cuts off, and fewer where the budget or the blocks are short.
        """
        assert self.can_draft(slot), "a row that must see each token before the next has no drafts"
        assert not self.in_flight[slot], "the host must know a row's tokens to propose the next ones"
        assert self.length[slot] - self.computed[slot] == 1, "a prompt that is not computed has no next token"
        room = min(self.drafts.shape[1], int(self.limit[slot] - self.length[slot]) - 1)
        proposed = list(tokens)[: max(room, 0)]
        self.drafts[slot, : len(proposed)] = proposed
        self.num_drafts[slot] = len(proposed)

    def can_draft(self, slot: int) -> bool:
        """Whether a row may have drafts: penalties and the per-request path need each token before the next draw."""
        return not self.ineligible[slot] and "penalties" not in self.sequence(slot).needs

    def release(self, slot: int) -> Sequence:
        """Free a slot; the sequence keeps the tokens it has, and the caller its blocks."""
        sequence = self.sequence(slot)
        sequence.tokens = self.tokens[slot, : self.length[slot]].copy()
        sequence.slot = -1
        self._count(sequence, -1)
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

    def _count(self, sequence: Sequence, change: int) -> None:
        self._needs = None
        for need in sequence.needs:
            self._asking[need] += change
        self.num_ineligible += change * bool(sequence.reason)
        self.num_with_logprobs += change * (sequence.params.logprobs >= 0)
