"""The sampler on a GPU: the same step as `sampler`'s in two kernels, and all of it fit for a CUDA graph.

Nothing here waits for the device, no shape depends on what it holds, and a row's draw is the same function of its seed,
its index and its logits whatever its neighbours ask for. So truncation only bans entries; what is drawn from are the
row's own logits, not those that truncation scaled.

The draws are those of the reference up to rounding: only scores that are nearly equal may change places.
"""

from __future__ import annotations

from torch import Tensor

from lockstep_worker.kernels.close import Closed, StepCodes, StepTables, close_step
from lockstep_worker.kernels.draw import Candidates, DrawInput, draw_tiles, pick
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.logits import BANNED, add_bias, ban_end_ids, keep_min_p, keep_top, penalize, scale
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import Needs

_CODES = StepCodes(int(FinishCode.END_ID), int(FinishCode.LENGTH), int(FinishCode.STOP_WORDS))


def sample(logits_nV: Tensor, rows: Tensor, columns: Columns, needs: Needs) -> Closed:
    """Draw one token a row, append and finish, see `sampler.sample`.

    Args:
        logits_nV: [n, V] of any float type.
        rows: int64 [n]; the spare slot may stand there several times.
        columns: the device columns; `last_token`, `length`, `finished` and `counts` are written.
        needs: what some row asks for.
    """
    candidates = _draw_tiles(logits_nV, rows, None, columns, needs)
    if not needs.penalties:
        return close_step(candidates, rows, _tables(columns), _CODES)
    alive = columns.finished[rows] == 0
    closed = close_step(candidates, rows, _tables(columns), _CODES)
    columns.counts.add(rows, closed.tokens, alive)
    return closed


def draw_input(rows: Tensor, columns: Columns) -> DrawInput:
    """Tell what the draws of these slots, int64 [n], depend on beside their logits."""
    return DrawInput(rows, columns.seed, columns.length, columns.temperature)


def take_best(candidates: Candidates, rows: Tensor, columns: Columns) -> Closed:
    """Append and finish where a head drew from its logits, as `sample` does.

    Args:
        candidates: of each of the head's tiles.
        rows: as in `sample`.
        columns: as in `sample`.
    """
    return close_step(candidates, rows, _tables(columns), _CODES)


def _tables(columns: Columns) -> StepTables:
    return StepTables(
        finished=columns.finished,
        last_token=columns.last_token,
        length=columns.length,
        limit=columns.limit,
        end_ids=columns.end_ids,
        stop_token_ids=columns.stop_token_ids,
    )


def draw(logits_nV: Tensor, rows: Tensor, offsets: Tensor, columns: Columns, needs: Needs) -> Tensor:
    """Draw one token for each row of logits: int64 [n].

    Args:
        logits_nV: [n, V] of any float type.
        rows: int64 [n], whose parameters hold.
        offsets: int64 [n], how many draws of its row stand before each.
        columns: the device columns.
        needs: what some row asks for.
    """
    return pick(_draw_tiles(logits_nV, rows, offsets, columns, needs))


def _draw_tiles(logits_nV: Tensor, rows: Tensor, offsets: Tensor | None, columns: Columns, needs: Needs) -> Candidates:
    shaped = _shape(logits_nV, rows, offsets, columns, needs)
    return draw_tiles(shaped, draw_input(rows, columns), offsets)


def _shape(logits_nV: Tensor, rows: Tensor, offsets: Tensor | None, columns: Columns, needs: Needs) -> Tensor:
    """Take the steps of `logits` that some row asks for, in its order."""
    if needs.bias or needs.penalties or needs.min_tokens or needs.truncation or needs.min_p:
        logits_nV = logits_nV.float()
    if needs.bias:
        logits_nV = add_bias(logits_nV, rows, columns)
    if needs.penalties:
        logits_nV = penalize(logits_nV, rows, columns)
    if needs.min_tokens:
        lengths = columns.length[rows] if offsets is None else columns.length[rows] + offsets
        logits_nV = ban_end_ids(logits_nV, rows, lengths, columns)
    if not needs.truncation and not needs.min_p:
        return logits_nV
    kept = scale(logits_nV, rows, columns)
    if needs.truncation:
        kept = keep_top(kept, rows, columns)
    if needs.min_p:
        kept = keep_min_p(kept, rows, columns)
    return logits_nV.masked_fill(kept == BANNED, BANNED)
