"""Which rows ended: END_ID, then LENGTH, then STOP_WORDS; the first that holds wins.

This form masks rows in the next run before the host has seen them. The host's own, `schedule/finish`, is the reference,
and decides for rows that are not eligible for the batched update.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.wire.messages import FinishCode


def finish_codes(tokens: Tensor, lengths: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Tell why each draw ended its row.

    Args:
        tokens: int64 [n], the tokens drawn.
        lengths: int64 [n], the row's length with the token.
        rows: int64 [n], their slots.
        columns: the device columns.

    Returns:
        uint8 [n] of `FinishCode`.
    """
    drawn = tokens.unsqueeze(1)
    codes = torch.zeros_like(tokens, dtype=torch.uint8)
    codes.masked_fill_((columns.stop_token_ids[rows] == drawn).any(dim=1), int(FinishCode.STOP_WORDS))
    codes.masked_fill_(lengths >= columns.limit[rows], int(FinishCode.LENGTH))
    codes.masked_fill_((columns.end_ids[rows] == drawn).any(dim=1), int(FinishCode.END_ID))
    return codes
