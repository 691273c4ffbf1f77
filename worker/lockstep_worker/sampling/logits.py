"""Shape the logits before a draw, in one documented order.

Logit bias, repetition penalty, frequency and presence penalty, bans of `min_tokens`, temperature, top-k, top-p, min-p.
Greedy rows take the best entry after the bans. A row that does not ask for a step passes it bit for bit unchanged, so
what its neighbours ask for is nothing to it.

Shapes: n rows, V vocabulary. A banned entry is minus infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.sampling.columns import NO_TOKEN, Columns

BANNED = float("-inf")
_BEST_WEIGHT = 1 << 40
"""Of a row's best entry, in integers; a row of 2**20 entries as good adds up to 2**60."""


def add_bias(logits_nV: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Add each row's biases; unused entries add zero to column 0."""
    return logits_nV.scatter_add(1, columns.bias_ids[rows].clamp(min=0), columns.bias[rows])


def penalize(logits_nV: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Make tokens that were there before less likely.

    The repetition penalty divides positive logits of tokens of the prompt and the output and multiplies negative ones
    (Keskar et al., "CTRL", 2019). The other two are differences, and know the output only.
    """
    is_seen, generated = columns.counts.read(rows)
    repetition = columns.repetition_penalty[rows].unsqueeze(1)
    repeated = torch.where(logits_nV > 0, logits_nV / repetition, logits_nV * repetition)
    logits_nV = torch.where(is_seen, repeated, logits_nV)
    logits_nV = logits_nV - columns.frequency_penalty[rows].unsqueeze(1) * generated
    return logits_nV - columns.presence_penalty[rows].unsqueeze(1) * (generated > 0)


def ban_end_ids(logits_nV: Tensor, rows: Tensor, lengths: Tensor, columns: Columns) -> Tensor:
    """Ban every id that would end a row which is still shorter than its `min_length`.

    Args:
        logits_nV: float32 [n, V].
        rows: int64 [n], their slots.
        lengths: int64 [n], the row's length before the draw.
        columns: the device columns.
    """
    ids = torch.cat((columns.end_ids[rows], columns.stop_token_ids[rows]), dim=1)
    early = (lengths < columns.min_length[rows]).unsqueeze(1)
    # Unused ids count nothing in column 0, so a real ban of column 0 survives them. Bytes, for CUDA reduces no bools.
    bans = torch.zeros_like(logits_nV, dtype=torch.uint8)
    bans.scatter_add_(1, ids.clamp(min=0), ((ids != NO_TOKEN) & early).byte())
    return logits_nV.masked_fill(bans > 0, BANNED)


def scale(logits_nV: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Measure each logit from its row's best and divide by the temperature; greedy rows are divided by one.

    The best entries come out as zero, so that no temperature, however small, makes ties of infinities.
    """
    temperature = columns.temperature[rows]
    divisor = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    best = logits_nV.amax(dim=1, keepdim=True)
    below = torch.where(logits_nV == best, 0.0, logits_nV - best)  # an infinite best, too, is zero below itself
    return below / divisor.unsqueeze(1)


def truncate(logits_nV: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Keep each row's top-k entries, then the smallest set that reaches top-p, then those within min-p of the best.

    Equal logits keep their order by id, so that the kept set does not depend on the batch.
    """
    ordered, order, weight, drop = _rank(logits_nV, rows, columns)
    drop |= weight < columns.min_p[rows].unsqueeze(1)
    drop[:, 0] = False
    return _to_columns(ordered.masked_fill(drop, BANNED), order)


def keep_top(logits_nV: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Keep each row's top-k entries, then the smallest set that reaches top-p: the first half of `truncate`."""
    ordered, order, _, drop = _rank(logits_nV, rows, columns)
    drop[:, 0] = False
    return _to_columns(ordered.masked_fill(drop, BANNED), order)


def keep_min_p(logits_nV: Tensor, rows: Tensor, columns: Columns) -> Tensor:
    """Keep the entries within min-p of the best: the second half of `truncate`, without an order.

    Neither top-k nor top-p drops the best, and the ratio of two probabilities is the same whatever else is dropped, so
    the probabilities themselves are not needed. It differs from `truncate` by rounding, at the edge of the kept set.

    Args:
        logits_nV: float32 [n, V], scaled: each row's best is zero.
        rows: int64 [n], their slots.
        columns: the device columns.
    """
    return logits_nV.masked_fill(logits_nV < columns.min_p[rows].log().unsqueeze(1), BANNED)


def _rank(logits_nV: Tensor, rows: Tensor, columns: Columns) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Order each row and apply top-k: the logits, their ids and weights, and which of them top-p drops.

    A weight is a probability divided by the best one's. Weights are added as integers, whose sum is the same in any
    order: on a GPU that of floats depends on the number of rows, and for a single row on the run.
    """
    ordered, order = logits_nV.sort(dim=1, descending=True, stable=True)
    position = torch.arange(ordered.shape[1], device=ordered.device)
    top_k = columns.top_k[rows].unsqueeze(1)
    ordered = ordered.masked_fill((top_k > 0) & (position >= top_k), BANNED)
    weight = (ordered - ordered[:, :1]).exp()
    parts = (weight * _BEST_WEIGHT).long()
    sums = parts.cumsum(dim=1)
    top_p = columns.top_p[rows].unsqueeze(1)
    needed = (top_p.double() * sums[:, -1:]).ceil().long()
    return ordered, order, weight, (sums - parts >= needed) & (top_p < 1)  # the last entries may weigh nothing


def _to_columns(ordered_nV: Tensor, order_nV: Tensor) -> Tensor:
    """Put each entry back where its id is."""
    return torch.empty_like(ordered_nV).scatter_(1, order_nV, ordered_nV)
