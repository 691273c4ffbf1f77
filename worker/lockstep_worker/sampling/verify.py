"""Which of a row's draws hold: a draft is right when it is what the row would have drawn itself.

A draw depends on (seed, token index) and on the logits after the tokens before it, and on nothing else. So a row whose
drafts are right so far has drawn the very tokens that it would have drawn one a run, at any temperature; the first
wrong draft is replaced by the draw in its stead, and what was drawn after it means nothing.

    drafts  41  17  8        what was proposed behind the newest token
    drawn   41  17  52  3    behind the newest token, behind 41, behind 17, behind 8
    kept    41  17  52       two right drafts and the draw that replaces the third
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep_worker.inputs.upload import upload
from lockstep_worker.schedule.plan import offsets_in_rows
from lockstep_worker.schedule.sequence import Int32


@dataclass(frozen=True, slots=True)
class Draws:
    """The n draws of a run's R rows, of which some bring up to W tokens: a row's draws stand behind one another."""

    rows: Tensor
    """int64 [n]: the slot of each draw"""
    offsets: Tensor
    """int64 [n]: how many draws of its row stand before it"""
    entries: Tensor
    """int64 [n]: where it stands in a table [R, W], flattened"""
    drafts_RW: Tensor
    """int64 [R, W]: the draft that each draw is compared with; -1 where there is none"""

    @classmethod
    def lay_out(cls, rows: Int32, draws: Int32, drafts: Int32, device: torch.device) -> Draws:
        """Lay out a run's draws.

        Args:
            rows: [R], their slots.
            draws: [R], how many each row draws, one more than its drafts.
            drafts: [R, D], of which each row has `draws - 1`.
            device: where the sampler runs.
        """
        width = int(draws.max())
        owner = np.repeat(np.arange(rows.size), draws)  # [n]
        offsets = offsets_in_rows(draws)
        padded = np.full((rows.size, width), -1, dtype=np.int64)
        is_draft = np.arange(width - 1) < (draws - 1)[:, None]
        padded[:, : width - 1][is_draft] = drafts[:, : width - 1][is_draft]
        arrays = (rows[owner].astype(np.int64), offsets, owner * width + offsets, padded)
        return cls(*(upload(array, device) for array in arrays))


def count_kept(tokens_RW: Tensor, codes_RW: Tensor, drafts_RW: Tensor) -> Tensor:
    """Count each row's draws that hold: int64 [R], at least 1.

    Args:
        tokens_RW: int64, what was drawn.
        codes_RW: uint8, why the row would end with each of them; 0 when it goes on.
        drafts_RW: int64, see `Draws`.
    """
    goes_on = (tokens_RW == drafts_RW) & (codes_RW == 0)
    return 1 + goes_on[:, :-1].long().cumprod(dim=1).sum(dim=1)
