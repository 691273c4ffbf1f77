"""Draw a row's tokens, one or, with drafts, several, and close the row's step on the device.

The draw is keyed by (seed, token index) and nothing else: a request gets the same tokens alone, in any batch, after a
preemption and on any rank. Source of the idea: the Gumbel-max trick over a counter-based generator (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", 2011); a request's key is mixed as splitmix64 does,
and each entry's bits as `kernels.noise` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep_worker.kernels.close import Closed
from lockstep_worker.kernels.draw import Candidates
from lockstep_worker.sampling import device
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.finish import finish_codes
from lockstep_worker.sampling.logits import add_bias, ban_end_ids, penalize, scale, truncate
from lockstep_worker.sampling.verify import Draws, count_kept
from lockstep_worker.wire.params import Needs


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_SPREAD, _MIX_3, _MIX_4 = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
_LOW = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a run drew, on the device. R rows of at most W tokens each."""

    tokens_RW: Tensor
    """int64: a row's tokens first"""
    counts: Tensor | None
    """int64 [R], how many of them each row brings; None where W is 1 and so is each count"""
    codes: Tensor
    """uint8 [R]: `FinishCode` with a row's last token"""
    pairs: Tensor | None = None
    """int32 [R, 2]: token and code once more, where one kernel wrote them: a captured run's one copy to the host"""

    def to_host(self) -> Drawn:
        """Start the way to the host; the result may be read once the device has come so far."""
        counts = None if self.counts is None else self.counts.to("cpu", non_blocking=True)
        return Drawn(self.tokens_RW.to("cpu", non_blocking=True), counts, self.codes.to("cpu", non_blocking=True))


def sample(logits_nV: Tensor, rows: Tensor, columns: Columns, needs: Needs) -> Drawn:
    """Draw one token a row, append and finish: the whole device side of a step after its forward.

    Args:
        logits_nV: float32 [n, V] on the columns' device.
        rows: int64 [n], the slots that sample in this step, each once; the spare slot as often as it takes.
        columns: the device columns; `last_token`, `length`, `finished` and `counts` are written.
        needs: what some row asks for.

    Returns:
        A row that had finished before keeps its state; what is returned for it means nothing, and the host drops it.
    """
    if columns.in_kernels:
        return _drawn(device.sample(logits_nV, rows, columns, needs))
    length = columns.length[rows]
    tokens = draw(logits_nV, rows, length, columns, needs)
    before = columns.finished[rows]
    alive = before == 0
    length = length + alive.long()
    columns.length[rows] = length
    codes = torch.where(alive, finish_codes(tokens, length, rows, columns), before)
    columns.last_token[rows] = torch.where(alive, tokens, columns.last_token[rows])
    columns.finished[rows] = codes
    if needs.penalties:
        columns.counts.add(rows, tokens, alive)
    return Drawn(tokens.unsqueeze(1), None, codes)


def sample_drafted(logits_nV: Tensor, rows: Tensor, draws: Draws, columns: Columns, needs: Needs) -> Drawn:
    """Draw for rows of which some have drafts, and keep what they would have drawn one token a run.

    Args:
        logits_nV: float32 [n, V], a row's draws behind one another.
        rows: int64 [R], the slots that sample in this step, each once.
        draws: where each of the n draws belongs.
        columns: as in `sample`.
        needs: what some row asks for; rows that ask for penalties have no drafts.
    """
    length = columns.length[draws.rows] + draws.offsets
    tokens = _draw_drafted(logits_nV, draws, length, columns, needs)
    codes = finish_codes(tokens, length + 1, draws.rows, columns)
    tokens_RW = torch.zeros_like(draws.drafts_RW)
    tokens_RW.view(-1)[draws.entries] = tokens
    codes_RW = torch.zeros_like(tokens_RW, dtype=torch.uint8)
    codes_RW.view(-1)[draws.entries] = codes
    counts = count_kept(tokens_RW, codes_RW, draws.drafts_RW)
    last = (counts - 1).unsqueeze(1)
    newest, ended = tokens_RW.gather(1, last)[:, 0], codes_RW.gather(1, last)[:, 0]
    before = columns.finished[rows]
    alive = before == 0
    columns.length[rows] += counts * alive
    columns.last_token[rows] = torch.where(alive, newest, columns.last_token[rows])
    columns.finished[rows] = torch.where(alive, ended, before)
    if needs.penalties:
        columns.counts.add(rows, newest, alive)
    return Drawn(tokens_RW, counts, columns.finished[rows])


def take_best(candidates: Candidates, rows: Tensor, columns: Columns) -> Drawn:
    """Close a step whose model drew where it computed the logits; see `device.take_best`."""
    return _drawn(device.take_best(candidates, rows, columns))


def _drawn(closed: Closed) -> Drawn:
    return Drawn(closed.tokens.unsqueeze(1), None, closed.codes, closed.pairs)


def _draw_drafted(logits_nV: Tensor, draws: Draws, lengths: Tensor, columns: Columns, needs: Needs) -> Tensor:
    if not columns.in_kernels:
        return draw(logits_nV, draws.rows, lengths, columns, needs)
    return device.draw(logits_nV, draws.rows, draws.offsets, columns, needs)


def draw(logits_nV: Tensor, rows: Tensor, lengths: Tensor, columns: Columns, needs: Needs) -> Tensor:
    """Draw one token for each row of logits; with temperature 0 the arg-max, the lowest id on ties.

    Args:
        logits_nV: float32 [n, V].
        rows: int64 [n], whose parameters hold.
        lengths: int64 [n], the tokens before each draw, which is the draw's index.
        columns: the device columns.
        needs: what some row asks for.

    Returns:
        int64 [n].
    """
    if needs.bias:
        logits_nV = add_bias(logits_nV, rows, columns)
    if needs.penalties:
        logits_nV = penalize(logits_nV, rows, columns)
    if needs.min_tokens:
        logits_nV = ban_end_ids(logits_nV, rows, lengths, columns)
    greedy = logits_nV.argmax(dim=1)
    if not needs.sampling:
        return greedy
    shaped = scale(logits_nV, rows, columns)
    if needs.truncation or needs.min_p:
        shaped = truncate(shaped, rows, columns)
    noise = exponential_noise(columns.seed[rows], lengths, shaped.shape[1])
    drawn = (shaped - noise.log()).argmax(dim=1)
    return torch.where(columns.temperature[rows] > 0, drawn, greedy)


def exponential_noise(seed_n: Tensor, index_n: Tensor, width: int) -> Tensor:
    """Independent Exponential(1) numbers, a pure function of (seed, index, column): float32 [n, width], all > 0.

    Small values are the ones that decide an arg-max, so they get the finest resolution (multiples of 2**-32).
    """
    key = _mix(seed_n + _GOLDEN * index_n).unsqueeze(1)
    bits = torch.arange(width, dtype=torch.int64, device=seed_n.device) * _SPREAD + key & _LOW
    bits = (bits ^ bits >> 16) * _MIX_3 & _LOW
    bits = (bits ^ bits >> 15 ^ key >> 32 & _LOW) * _MIX_4 & _LOW
    bits ^= bits >> 16
    uniform = (bits.double() + 0.5) * 2.0**-32
    return -torch.log1p(-uniform).float()


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on int64 tensors; products wrap, right shifts are made logical by masks."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ (x >> 31 & 0x1FFFFFFFF)
