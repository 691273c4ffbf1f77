"""The device half of the slot table: what sampling and finishing need of every request, one row a slot.

Behind the slots there is a spare one. It is nobody's and has finished for ever, so a batch that must have a fixed size
is filled up with it: what is drawn for it changes nothing.

Rows of newcomers go to the device together, before the next run, in two copies however many they are; they are read by
index, and nothing here is per step. The columns of one number type are views of one table, laid out by name:

    integers  last_token  length  limit  min_length  top_k  seed  end_ids[16]     stop_token_ids[16]
    slot 3    9           5       35     3           0      71    2 -1 -1 ... -1  -1 -1 ... -1
    floats    temperature  top_p  min_p  repetition_penalty  presence_penalty  frequency_penalty
    slot 3    0.7          0.9    0.0    1.0                 0.0               0.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from msgspec.structs import astuple
from torch import Tensor

from lockstep_worker.inputs.upload import upload
from lockstep_worker.sampling.counts import TokenCounts
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import MAX_LOGIT_BIAS, PARAMETERS

NO_TOKEN = -1
MAX_BIAS = 100.0
FORCED = 1e5
"""What a bias of 100 adds: more than logits differ by, and little enough that forced ids keep their order."""


_STATE: Mapping[str, Callable[[Sequence], int]] = {
    "last_token": lambda sequence: int(sequence.tokens[-1]),
    "length": lambda sequence: sequence.tokens.size,
    "limit": lambda sequence: sequence.limit,
    "min_length": lambda sequence: sequence.prompt_length + sequence.params.min_tokens,
}
"""Columns that a newcomer's own numbers fill; all others are declared by the parameters."""


def _declared(column: str, *, wide: bool) -> dict[str, int]:
    """The parameters of one number type, of one value or of several, each with its index among all parameters."""
    return {
        name: index
        for index, (name, one) in enumerate(PARAMETERS.items())
        if one.column == column and (one.width > 1) is wide
    }


_INTEGERS, _IDS, _FLOATS = (
    _declared("int64", wide=False),
    _declared("int64", wide=True),
    _declared("float32", wide=False),
)


class Columns:
    """Per-slot device columns, views of one table of integers and one of floats. S slots, the spare one last.

    Args:
        num_slots: S - 1, the slot table's.
        device: where the sampler runs.
        vocab_size: how many ids a token has.
    """

    last_token: Tensor
    """int64 [S]: a decode reads its newest token here, so that it need not travel to the host and back."""
    length: Tensor
    """int64 [S], the newest token included."""
    limit: Tensor
    """int64 [S]: the length that ends with LENGTH."""
    min_length: Tensor
    """int64 [S]: below it no end id is drawn."""
    top_k: Tensor
    seed: Tensor
    end_ids: Tensor
    """int64 [S, 16], as `stop_token_ids`; `NO_TOKEN` where there is none."""
    stop_token_ids: Tensor
    temperature: Tensor
    """float32 [S], as all that follow."""
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor

    def __init__(self, num_slots: int, device: torch.device, vocab_size: int) -> None:
        self.device = device
        self.in_kernels = device.type == "cuda"
        """Whether the sampler draws and closes a step in `sampling/device`; else in `sampling/sampler` itself."""
        self.spare_slot = num_slots
        num_rows = num_slots + 1
        self._integers = self._lay_out((*_STATE, *_INTEGERS, *_IDS), num_rows, torch.int64)
        self._floats = self._lay_out(_FLOATS, num_rows, torch.float32)
        self.finished = torch.zeros(num_rows, dtype=torch.uint8, device=device)
        """The finish code once the device has set it: the row's later tokens mean nothing."""
        self.bias_ids = torch.full((num_rows, MAX_LOGIT_BIAS), NO_TOKEN, device=device)
        self.bias = torch.zeros((num_rows, MAX_LOGIT_BIAS), dtype=torch.float32, device=device)
        """What is added to the logits of `bias_ids`; 0 where there is none."""
        self.counts = TokenCounts(num_slots, vocab_size, device)
        self._biased: set[int] = set()
        self._end_spare_slot()

    def _lay_out(self, names: Iterable[str], num_rows: int, dtype: torch.dtype) -> Tensor:
        """Make the table of one number type, and name its parts."""
        widths = {name: PARAMETERS[name].width if name in PARAMETERS else 1 for name in names}
        table = torch.zeros((num_rows, sum(widths.values())), dtype=dtype, device=self.device)
        for name, part in zip(widths, torch.split(table, [*widths.values()], dim=1), strict=True):
            setattr(self, name, part if widths[name] > 1 else part[:, 0])
        return table

    def _end_spare_slot(self) -> None:
        self.length[self.spare_slot] = 1
        self.limit[self.spare_slot] = torch.iinfo(torch.int64).max
        self.end_ids[self.spare_slot] = NO_TOKEN
        self.stop_token_ids[self.spare_slot] = NO_TOKEN
        self.finished[self.spare_slot] = int(FinishCode.END_ID)

    def admit(self, newcomers: Mapping[int, Sequence]) -> None:
        """Write the rows of newcomers, behind all that the device was told before.

        Args:
            newcomers: by slot; after a preemption with more tokens than the prompt. All that a slot's former owner left
                is overwritten.
        """
        if not newcomers:
            return
        rows = upload(np.fromiter(newcomers, dtype=np.int64, count=len(newcomers)), self.device)
        values = [astuple(one.params) for one in newcomers.values()]
        integers = np.array([*map(_integers_of, newcomers.values(), values)], dtype=np.int64)
        floats = np.array([[row[index] for index in _FLOATS.values()] for row in values], dtype=np.float32)
        self._integers.index_copy_(0, rows, upload(integers, self.device))
        self._floats.index_copy_(0, rows, upload(floats, self.device))
        self.finished.index_fill_(0, rows, 0)
        for slot, sequence in newcomers.items():
            self._write_bias(slot, sequence.params.logit_bias)
            if "penalties" in sequence.needs:
                self.counts.fill(slot, sequence.tokens, sequence.prompt_length)
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
            self.bias_ids[slot, : len(ids)] = upload(np.array(ids, dtype=np.int64), self.device)
            self.bias[slot, : len(ids)] = upload(
                np.array([_addend(value) for value in values], dtype=np.float32), self.device
            )


def _integers_of(sequence: Sequence, values: tuple[Any, ...]) -> list[int]:
    """Write a newcomer's row of integers; `values` are its parameters in their order."""
    row = [read(sequence) for read in _STATE.values()]
    row += [values[index] for index in _INTEGERS.values()]
    for name, index in _IDS.items():
        row += (*values[index], *(NO_TOKEN,) * (PARAMETERS[name].width - len(values[index])))
    return row


def _addend(value: float) -> float:
    if abs(value) < MAX_BIAS:
        return value
    return FORCED if value > 0 else float("-inf")
