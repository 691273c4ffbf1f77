"""Blocks for running rows: the grant of the next ones, and when full ones become known to the prefix cache.

Rows that start together cross a block's border together, so both are kept from costing one step much. A grant to many
rows is one call of the pool and one write a column. To commit a block is to hash it, which no vector operation does, so
the rows that were granted a block wait in a queue of which each step takes a share. The share is counted, not timed:
every rank of a data replica takes the same.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.schedule.sequence import Int64
from lockstep_worker.schedule.slots import SlotTable

_MANY = 12
"""Fewer rows are committed sooner one by one."""


class Grants:
    """Grants blocks to rows and commits what they filled.

    Args:
        table: where running requests live.
        pool: the blocks.
    """

    def __init__(self, table: SlotTable, pool: BlockPool) -> None:
        self._table = table
        self._pool = pool
        self._uncommitted: dict[int, None] = {}  # slots whose latest full block is not committed, first come first
        tokens_a_step = 1 + table.drafts.shape[1]
        self._steps = -(-pool.block_size // tokens_a_step)
        """How many steps a row takes at least to fill a block."""

    def short_rows(self, rows: Int64) -> Int64:
        """Keep of these rows those that have no block for the next position that they compute."""
        table = self._table
        return rows[table.computed[rows] >= table.num_blocks[rows] * self._pool.block_size]

    def give_next(self, rows: Int64) -> None:
        """Give each row one more block; there must be as many. A row stands once among them."""
        self._table.append_blocks(rows, self._pool.allocate(rows.size))
        self._note(rows.tolist())

    def give(self, slot: int, count: int) -> None:
        """Give a row that decodes more blocks; there must be as many."""
        self._table.set_blocks(slot, self._pool.allocate(count))
        self._note([slot])

    def _note(self, slots: list[int]) -> None:
        if self._pool.prefix_cache:
            self._uncommitted.update(dict.fromkeys(slots))

    def commit_some(self, num_running: int) -> None:
        """Commit the rows that wait longest: as many as bring the queue to its end before its first row comes again."""
        if not self._uncommitted:
            return
        slots = list(islice(self._uncommitted, -(-num_running // self._steps)))
        if len(slots) < _MANY:
            for slot in slots:
                self.commit(slot)
            return
        for slot in slots:
            del self._uncommitted[slot]
        self._commit_latest(np.array(slots, dtype=np.intp))

    def _commit_latest(self, rows: Int64) -> None:
        """Do what `commit` does for each of these rows, at once for those with one full block to commit: for most."""
        table, size = self._table, self._pool.block_size
        latest = np.minimum(table.length[rows], table.computed[rows]) // size - 1
        if latest.min() < 0:  # a row with drafts was granted its second block before the first was full
            rows, latest = rows[latest >= 0], latest[latest >= 0]
        parents = table.block_table[rows, latest - 1]
        parents[latest == 0] = -1
        first = rows * table.tokens.shape[1] + latest * size
        tokens = table.tokens.reshape(-1)[first[:, None] + np.arange(size)]
        blocks = table.block_table[rows, latest]
        for index in self._pool.commit_next(parents.tolist(), blocks.tolist(), tokens):
            self.commit(int(rows[index]))

    def commit(self, slot: int) -> None:
        """Offer a row's full blocks to the prefix cache, as far as tokens are known and computed."""
        table = self._table
        self._uncommitted.pop(slot, None)
        known = min(table.length.item(slot), table.computed.item(slot))
        self._pool.commit(table.sequence(slot).blocks, table.tokens[slot], known)
