"""Draw one token a row, and close the row's step on the device.

The draw is keyed by (seed, token index) and nothing else: a request gets the same tokens alone, in any batch, after a
preemption and on any rank. Source of the idea: the Gumbel-max trick over a counter-based generator (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", 2011); the mixing function is splitmix64's finaliser.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.sampling.columns import Columns, Needs
from lockstep_worker.sampling.finish import finish_codes
from lockstep_worker.sampling.logits import add_bias, ban_end_ids, penalize, scale, truncate


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def sample(logits_nV: Tensor, rows: Tensor, columns: Columns, needs: Needs) -> tuple[Tensor, Tensor]:
    """Draw, append and finish: the whole device side of a step after its forward.

    Args:
        logits_nV: float32 [n, V] on the columns' device.
        rows: int64 [n], the slots that sample in this step, each once.
        columns: the device columns; `last_token`, `length`, `finished` and `counts` are written.
        needs: what some row asks for.

    Returns:
        tokens int64 [n] and finish codes uint8 [n]. A row that had finished before keeps its state; what is
        returned for it means nothing, and the host drops it.
    """
    tokens = draw(logits_nV, rows, columns, needs)
    before = columns.finished[rows]
    alive = before == 0
    columns.length[rows] += alive.long()
    codes = torch.where(alive, finish_codes(tokens, rows, columns), before)
    columns.last_token[rows] = torch.where(alive, tokens, columns.last_token[rows])
    columns.finished[rows] = codes
    if needs.penalties:
        columns.counts.add(rows, tokens, alive)
    return tokens, codes


def draw(logits_nV: Tensor, rows: Tensor, columns: Columns, needs: Needs) -> Tensor:
    """Draw one token a row: int64 [n]; rows with temperature 0 get the arg-max, the lowest id on ties."""
    if needs.bias:
        logits_nV = add_bias(logits_nV, rows, columns)
    if needs.penalties:
        logits_nV = penalize(logits_nV, rows, columns)
    if needs.min_tokens:
        logits_nV = ban_end_ids(logits_nV, rows, columns)
    greedy = logits_nV.argmax(dim=1)
    if not needs.sampling:
        return greedy
    shaped = scale(logits_nV, rows, columns)
    if needs.truncation:
        shaped = truncate(shaped, rows, columns)
    noise = exponential_noise(columns.seed[rows], columns.length[rows], shaped.shape[1])
    drawn = (shaped - noise.log()).argmax(dim=1)
    return torch.where(columns.temperature[rows] > 0, drawn, greedy)


def exponential_noise(seed_n: Tensor, index_n: Tensor, width: int) -> Tensor:
    """Independent Exponential(1) numbers, a pure function of (seed, index, column): float32 [n, width], all > 0.

    Small values are the ones that decide an arg-max, so they get the finest resolution (multiples of 2**-32).
    """
    key = _mix(seed_n + _GOLDEN * index_n)
    column = torch.arange(1, width + 1, dtype=torch.int64, device=seed_n.device)
    bits = _mix(key.unsqueeze(1) + _GOLDEN * column)
    uniform = ((bits >> 32 & 0xFFFFFFFF).double() + 0.5) * 2.0**-32
    return -torch.log1p(-uniform).float()


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on int64 tensors; products wrap, right shifts are made logical by masks."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ (x >> 31 & 0x1FFFFFFFF)
