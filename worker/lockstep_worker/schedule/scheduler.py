"""Who runs in the next step: decodes, then prompt chunks, then newcomers, in one token budget. Host integers, no torch.

Every rank of a data replica runs this on equal state and comes to the equal plan; nothing here may look at a clock, a
random number or anything else that is one rank's own.

What always holds between two steps, row by row:

    computed <= length + in_flight          nothing is computed that is neither known nor about to be
    computed <= num_blocks * block_size     each computed position has a block
    remaining = length + in_flight - computed, the tokens that wait to be computed: 1 is a decode, more a prompt

The plan is booked as if it had run, so that the next one can be made before its tokens are here.
"""

from __future__ import annotations

import bisect

import numpy as np

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.schedule.grants import Grants
from lockstep_worker.schedule.plan import EMPTY_PLAN, Plan
from lockstep_worker.schedule.sequence import Int32, Int64, Sequence
from lockstep_worker.schedule.slots import SlotTable


class Scheduler:
    """The waiting queue and the running rows.

    The lowest priority number first, and among equals first come, first served; none overtakes one before it that does
    not fit. A running request never waits for a newcomer, whatever its priority. When blocks run out the running
    request whose turn would come last goes back to the queue and is computed anew later.

    Args:
        table: where running requests live.
        pool: the blocks.
        max_num_tokens: the most tokens of one forward; at least the number of slots.
    """

    def __init__(self, table: SlotTable, pool: BlockPool, max_num_tokens: int) -> None:
        self.table = table
        self.pool = pool
        self.waiting: list[Sequence] = []
        """In the order of their turns."""
        self.started: list[Sequence] = []
        """Who got a slot for the first time in the latest `schedule`, with `cached_tokens` set."""
        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        """Tokens of the prompts of all requests that are not ended."""
        self._max_num_tokens = max_num_tokens
        self._arrivals = 0
        self._grants = Grants(table, pool)
        self._running: dict[int, None] = {}  # slots in order of admission
        self._rows: Int64 | None = None  # the same as an array; None when it must be made anew
        self._by_handle: dict[int, Sequence] = {}
        self._blocked_at = -1
        """Free blocks when the queue's head last did not fit; it need not be looked up again before there are more."""

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def num_requests(self) -> int:
        """Requests that are not ended."""
        return len(self._by_handle)

    def add(self, sequence: Sequence) -> None:
        """Queue a validated request."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._by_handle[sequence.handle] = sequence
        self.num_prompt_tokens += sequence.prompt_length
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=_turn)
        if self.waiting[0] is sequence:
            self._blocked_at = -1

    def cancel(self, handle: int) -> bool:
        """End a request wherever it is; False when there is none of that handle (it ended before)."""
        sequence = self._by_handle.get(handle)
        if sequence is None:
            return False
        if sequence.slot >= 0:
            self.finish(sequence.slot)
        else:
            self._blocked_at = -1
            self.waiting.remove(sequence)
            self._forget(sequence)
        return True

    def finish(self, slot: int) -> None:
        """Free everything of a running request."""
        self._forget(self._vacate(slot))

    def _forget(self, sequence: Sequence) -> None:
        del self._by_handle[sequence.handle]
        self.num_prompt_tokens -= sequence.prompt_length

    def schedule(self) -> Plan:
        """Choose the next run and book it in the table; its plan is empty when there is nothing to run."""
        self.started = []
        preemptions = self.num_preemptions
        due, has_prompts = self._find_decodes()
        rows = self._grant_next(due)
        counts, num_decodes = self._grant_drafts(rows), rows.size
        self._grants.commit_some(self.num_running)
        budget = self._max_num_tokens - (int(counts.sum()) if self.table.may_draft else num_decodes)
        prompts, chunks = self._choose_prefills(budget) if has_prompts else ([], [])
        if self.waiting and preemptions == self.num_preemptions:
            self._admit(budget - sum(chunks), prompts, chunks)
        if prompts:
            rows = np.concatenate((rows, np.array(prompts, dtype=np.intp)))
            counts = np.concatenate((counts, np.array(chunks, dtype=np.int32)))
        return self._book(rows, counts, num_decodes) if rows.size else EMPTY_PLAN

    def _running_rows(self) -> Int64:
        """Return the running slots in order of admission; nobody may write to the array."""
        if self._rows is None:
            self._rows = np.fromiter(self._running, dtype=np.intp, count=len(self._running))
        return self._rows

    def _remaining(self, rows: Int64) -> Int32:
        """Tokens of each row that wait to be computed, those in flight included."""
        table = self.table
        return table.length[rows] + table.in_flight[rows] - table.computed[rows]

    def _find_decodes(self) -> tuple[Int64, bool]:
        """Find the rows that are due a decode, and whether any other has more of its prompt to compute."""
        table, rows = self.table, self._running_rows()
        computed, in_flight = table.computed[rows], table.in_flight[rows]
        length = table.length[rows] + in_flight
        remaining = length - computed
        # A row whose tokens in flight may reach the limit ends without another run, or is looked at again after them.
        is_due = (remaining == 1) & (length < table.limit[rows])
        if table.may_draft:
            # How many tokens a checked draft leaves is known after its collect only; who proposes must know them all.
            is_due &= in_flight + table.drafting[rows] <= 1
        if np.count_nonzero(is_due) == rows.size <= self._max_num_tokens:
            return rows, False
        return rows[is_due][: self._max_num_tokens], bool(np.count_nonzero(remaining > 1))

    def _grant_next(self, rows: Int64) -> Int64:
        """Give each row the block that it writes to, and return the rows that still run.

        While there are blocks for all, that is one grant. When they run out it goes row by row, and rows whose turn is
        last are sent back to the queue.
        """
        short = self._grants.short_rows(rows)
        if not short.size:
            return rows
        if short.size <= self.pool.num_free:
            self._grants.give_next(short)
            return rows
        for slot in short.tolist():
            if slot in self._running:  # an earlier row may have sent it back to the queue
                self._grow(slot)
        return rows[[slot in self._running for slot in rows.tolist()]]

    def _grant_drafts(self, rows: Int64) -> Int32:
        """Say how many tokens each decode computes: its newest one, and as many drafts as take nothing from anybody.

        Drafts get what the rows leave of the budget, and free blocks; no row is sent back for them.
        """
        table, size = self.table, self.pool.block_size
        if not (table.may_draft and table.num_drafts[rows].any()):
            return np.ones(rows.size, dtype=np.int32)
        drafts = table.num_drafts[rows]
        before = np.cumsum(drafts) - drafts
        drafts = np.clip(self._max_num_tokens - rows.size - before, 0, drafts)
        for index in np.flatnonzero(drafts).tolist():
            slot = int(rows[index])
            missing = -(-(int(table.computed[slot]) + 1 + int(drafts[index])) // size) - int(table.num_blocks[slot])
            if blocks := max(min(missing, self.pool.num_free), 0):
                self._grants.give(slot, blocks)
            drafts[index] = min(drafts[index], table.num_blocks[slot] * size - table.computed[slot] - 1)
        return (1 + drafts).astype(np.int32)

    def _grow(self, slot: int) -> None:
        """Give a row one more block, sending back the rows whose turn is last until there is one."""
        while not self.pool.num_free:
            last = max(self._running, key=lambda running: self.table.sequence(running).turn)
            self._preempt(last)
            if last == slot:
                return
        self._grants.give(slot, 1)

    def _preempt(self, slot: int) -> None:
        """Send a row back to the queue; its tokens in flight are dropped and will be drawn again, the same."""
        self._queue(self._vacate(slot))
        self._blocked_at = -1
        self.num_preemptions += 1

    def _vacate(self, slot: int) -> Sequence:
        self._grants.commit(slot)
        del self._running[slot]
        self._rows = None
        sequence = self.table.release(slot)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        return sequence

    def _choose_prefills(self, budget: int) -> tuple[list[int], list[int]]:
        """Go on with prompts that are partly computed, oldest first."""
        rows = self._running_rows()
        remaining = self._remaining(rows)
        chosen: list[int] = []
        counts: list[int] = []
        for index in np.flatnonzero(remaining > 1).tolist():
            if budget <= 0:
                break
            count = min(int(remaining[index]), budget)
            chosen.append(int(rows[index]))
            counts.append(count)
            budget -= count
        return chosen, counts

    def _admit(self, budget: int, rows: list[int], counts: list[int]) -> None:
        """Take newcomers from the queue's head while slots, blocks and budget last; none overtakes."""
        while self.waiting and self.table.num_free and budget > 0 and self.pool.num_free > self._blocked_at:
            sequence = self.waiting[0]
            found = self.pool.match(sequence.tokens)
            missing = -(-(sequence.tokens.size + 1) // self.pool.block_size) - len(found)
            if missing > self.pool.num_free:
                self.pool.release(found)
                self._blocked_at = self.pool.num_free
                return
            self._blocked_at = -1
            del self.waiting[0]
            slot = self.table.admit(sequence)
            self._running[slot] = None
            self._rows = None
            self.table.set_blocks(slot, found + self.pool.allocate(missing))
            cached = len(found) * self.pool.block_size
            self.table.computed[slot] = cached
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached
                self.started.append(sequence)
            count = min(sequence.tokens.size - cached, budget)
            rows.append(slot)
            counts.append(count)
            budget -= count

    def _book(self, rows: Int64, counts: Int32, num_decodes: int) -> Plan:
        """Write the plan into the table, as if it had run: what follows it on the device sees its results."""
        table = self.table
        starts = table.computed[rows]
        after = starts + counts
        table.computed[rows] = after
        draws = counts  # a decode draws what it computes
        if num_decodes < rows.size:
            draws = (after == table.length[rows] + table.in_flight[rows]).astype(np.int32)
            draws[:num_decodes] = counts[:num_decodes]
        table.in_flight[rows] += draws
        if table.may_draft:
            table.num_drafts[rows] = 0
        for slot in rows[num_decodes:].tolist():
            self._grants.commit(slot)
        return Plan(
            rows=rows.astype(np.int32),
            starts=starts,
            counts=counts,
            draws=draws,
            num_decodes=num_decodes,
            max_draws=int(counts[:num_decodes].max(initial=1)) if table.may_draft else 1,
        )


def _turn(sequence: Sequence) -> tuple[int, int]:
    return sequence.turn
