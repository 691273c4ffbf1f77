"""How often each row that asks for penalties has each token, on the device.

A row is V integers of 32 bits, for rows that ask only; the table grows with them and never beyond one row a slot and
one. So it takes at most 4 * (S + 1) * V bytes, less than the logits and the order that sampling a full batch makes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep_worker.inputs.upload import upload

_NOBODY = 0
"""The table's row of all slots that do not ask; it stays zero."""
_IN_PROMPT = 1
_ONE = 2
"""An entry is twice the number of times in the output, plus one for a token of the prompt:
0 is nowhere, 1 in the prompt alone, 2 once in the output, 5 in the prompt and twice in the output."""


class TokenCounts:
    """Per-slot counts of tokens. S slots and a spare one behind them, which never asks; V vocabulary.

    Args:
        num_slots: S.
        vocab_size: V.
        device: where the sampler runs.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._row_of = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        self._table = torch.zeros((1, vocab_size), dtype=torch.int32, device=device)
        self._held: dict[int, int] = {}
        """The table's rows by slot; a slot keeps its own until its next owner does not ask."""
        self._free: list[int] = []
        self._num_slots = num_slots

    @property
    def num_rows(self) -> int:
        """Rows that have memory, the one of nobody included."""
        return self._table.shape[0]

    def fill(self, slot: int, tokens: npt.NDArray[np.int32], prompt_length: int) -> None:
        """Count a new owner's tokens anew, those that it had generated before a preemption as generated.

        Nothing here waits for the device; to assign a number by index would, since torch copies it there first.
        """
        row = self._hold(slot)
        self._row_of[slot].fill_(row)
        entries = self._table[row].zero_()
        known = upload(tokens.astype(np.int64), entries.device)
        entries.index_fill_(0, known[:prompt_length], _IN_PROMPT)
        generated = known[prompt_length:]
        entries.index_add_(0, generated, torch.full_like(generated, _ONE, dtype=torch.int32))

    def clear(self, slot: int) -> None:
        """A new owner does not ask: it reads nothing, and another slot may have the row."""
        if (row := self._held.pop(slot, None)) is not None:
            self._row_of[slot].fill_(_NOBODY)
            self._free.append(row)

    def add(self, rows: Tensor, tokens: Tensor, alive: Tensor) -> None:
        """Count the tokens just drawn.

        Args:
            rows: int64 [n], slots, each once but those that do not ask.
            tokens: int64 [n].
            alive: bool [n], False where the token means nothing.
        """
        row = self._row_of[rows]
        counts = alive & (row != _NOBODY)
        self._table[row, tokens] = self._table[row, tokens] + _ONE * counts.int()

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return which tokens a slot has at all and how often it generated each: bool and float32 [n, V]."""
        entries = self._table[self._row_of[rows]]
        return entries != 0, (entries >> 1).float()

    def _hold(self, slot: int) -> int:
        if slot not in self._held:
            if not self._free:
                self._grow()
            self._held[slot] = self._free.pop()
        return self._held[slot]

    def _grow(self) -> None:
        """Double the table; what runs on the device keeps the old one until it is done."""
        old = self.num_rows
        new = min(2 * old, self._num_slots + 1)
        table = torch.zeros((new, self._table.shape[1]), dtype=self._table.dtype, device=self._table.device)
        table[:old] = self._table
        self._table = table
        self._free = list(range(new - 1, old - 1, -1))
