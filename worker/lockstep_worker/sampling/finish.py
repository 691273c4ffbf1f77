"""Which rows ended: END_ID, then LENGTH, then STOP_WORDS; the first that holds wins.

The device form masks rows in the next launch before the host has seen them; the host form is the reference, and decides
for rows that are not eligible for the batched update.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import SamplingParams


def finish_codes(tokens: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Tell why each row ended with its newest token, already counted in `columns.length`.

    Args:
        tokens: int64 [n], the tokens just drawn.
        rows: int64 [n], their slots.
        columns: the device columns.

    Returns:
        uint8 [n] of `FinishCode`.
    """
    drawn = tokens.unsqueeze(1)
    codes = torch.zeros_like(tokens, dtype=torch.uint8)
    codes.masked_fill_((columns.stop_ids[rows] == drawn).any(dim=1), int(FinishCode.STOP_WORDS))
    codes.masked_fill_(columns.length[rows] >= columns.limit[rows], int(FinishCode.LENGTH))
    codes.masked_fill_((columns.end_ids[rows] == drawn).any(dim=1), int(FinishCode.END_ID))
    return codes


def finish_code(token: int, length: int, limit: int, params: SamplingParams) -> FinishCode:
    """The same for one request on the host; `length` counts the token."""
    if token in params.end_ids:
        return FinishCode.END_ID
    if length >= limit:
        return FinishCode.LENGTH
    if token in params.stop_token_ids:
        return FinishCode.STOP_WORDS
    return FinishCode.NOT_FINISHED
