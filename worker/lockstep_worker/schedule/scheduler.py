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
from lockstep_worker.schedule.plan import EMPTY_PLAN, Plan
from lockstep_worker.schedule.sequence import Int32, Sequence
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
        self._running: dict[int, None] = {}  # slots in order of admission
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
        decodes, brings = self._grant_decodes()
        budget = self._max_num_tokens - int(brings.sum())
        rows, counts = self._choose_prefills(budget)
        budget -= sum(counts)
        if preemptions == self.num_preemptions:
            self._admit(budget, rows, counts)
        if not decodes.size and not rows:
            return EMPTY_PLAN
        return self._book(
            np.concatenate((decodes, np.array(rows, dtype=np.int32))),
            np.concatenate((brings, np.array(counts, dtype=np.int32))),
            decodes.size,
        )

    def _running_rows(self) -> Int32:
        return np.fromiter(self._running, dtype=np.int32, count=len(self._running))

    def _remaining(self, rows: Int32) -> Int32:
        """Tokens of each row that wait to be computed, those in flight included."""
        table = self.table
        return table.length[rows] + table.in_flight[rows] - table.computed[rows]

    def _grant_decodes(self) -> tuple[Int32, Int32]:
        """Find the rows that are due a decode, and give each the blocks that it writes to.

        Returns:
            The rows, and how many tokens each computes: its newest one and its drafts.
        """
        table, size = self.table, self.pool.block_size
        rows = self._running_rows()
        # A row whose tokens in flight may reach the limit ends without another run, or is looked at again after them.
        open_ended = table.length[rows] + table.in_flight[rows] < table.limit[rows]
        # How many tokens a checked draft leaves is known after its collect only; who proposes must know them all.
        is_certain = table.in_flight[rows] + table.drafting[rows] <= 1
        rows = rows[open_ended & is_certain & (self._remaining(rows) == 1)][: self._max_num_tokens]
        short = rows[table.computed[rows] >= table.num_blocks[rows] * size]
        for slot in short.tolist():
            if slot in self._running:  # an earlier row may have sent it back to the queue
                self._grow(slot)
        if short.size:
            rows = rows[[slot in self._running for slot in rows.tolist()]]
        return rows, self._grant_drafts(rows)

    def _grant_drafts(self, rows: Int32) -> Int32:
        """Say how many tokens each decode computes: its newest one, and as many drafts as take nothing from anybody.

        Drafts get what the rows leave of the budget, and free blocks; no row is sent back for them.
        """
        table, size = self.table, self.pool.block_size
        drafts = table.num_drafts[rows]
        if not drafts.any():
            return np.ones(rows.size, dtype=np.int32)
        before = np.cumsum(drafts) - drafts
        drafts = np.clip(self._max_num_tokens - rows.size - before, 0, drafts)
        for index in np.flatnonzero(drafts).tolist():
            slot = int(rows[index])
            missing = -(-(int(table.computed[slot]) + 1 + int(drafts[index])) // size) - int(table.num_blocks[slot])
            if blocks := max(min(missing, self.pool.num_free), 0):
                self._commit(slot)
                table.set_blocks(slot, self.pool.allocate(blocks))
            drafts[index] = min(drafts[index], table.num_blocks[slot] * size - table.computed[slot] - 1)
        return (1 + drafts).astype(np.int32)

    def _grow(self, slot: int) -> None:
        """Give a row one more block, sending back the rows whose turn is last until there is one."""
        while not self.pool.num_free:
            last = max(self._running, key=lambda running: self.table.sequence(running).turn)
            self._preempt(last)
            if last == slot:
                return
        self._commit(slot)
        self.table.set_blocks(slot, self.pool.allocate(1))

    def _preempt(self, slot: int) -> None:
        """Send a row back to the queue; its tokens in flight are dropped and will be drawn again, the same."""
        self._queue(self._vacate(slot))
        self._blocked_at = -1
        self.num_preemptions += 1

    def _vacate(self, slot: int) -> Sequence:
        self._commit(slot)
        del self._running[slot]
        sequence = self.table.release(slot)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        return sequence

    def _commit(self, slot: int) -> None:
        """Offer a row's full blocks to the prefix cache, as far as tokens are known and computed."""
        table = self.table
        sequence = table.sequence(slot)
        known = int(min(table.length[slot], table.computed[slot]))
        self.pool.commit(sequence.blocks, table.tokens[slot, :known], known)

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

    def _book(self, rows: Int32, counts: Int32, num_decodes: int) -> Plan:
        """Write the plan into the table, as if it had run: what follows it on the device sees its results."""
        table = self.table
        starts = table.computed[rows]
        table.computed[rows] = starts + counts
        draws = (table.computed[rows] == table.length[rows] + table.in_flight[rows]).astype(np.int32)
        draws[:num_decodes] = counts[:num_decodes]
        table.in_flight[rows] += draws
        table.num_drafts[rows] = 0
        for slot in rows[num_decodes:].tolist():
            self._commit(slot)
        return Plan(rows=rows, starts=starts, counts=counts, draws=draws, num_decodes=num_decodes)


def _turn(sequence: Sequence) -> tuple[int, int]:
    return sequence.turn
