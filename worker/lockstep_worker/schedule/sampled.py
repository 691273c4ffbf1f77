"""What one run drew, on the host.

An example of two rows; the second checked two drafts, of which the first was right, so it brings two tokens:

    rows    draws  counts  tokens       code
    3       1      1       [41  .  .]   0
    0       3      2       [17 52  .]   1: the 52 ended it

Where no row of a run has drafts, which is the common case, `tokens` is one column and nothing looks at the counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep_worker.schedule.sequence import Int32, Int64
from lockstep_worker.wire.messages import Logprobs

Codes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The logprobs of those of a run's rows that ask: arrays of one row each, K best tokens wide.

    A row that asks brings one token a run.
    """

    rows: Int32
    counts: Int32
    """How many of the best tokens each row asks for."""
    drawn: Float32
    ids: Int32
    values: Float32

    def of(self, rows: Int32) -> RowLogprobs | None:
        """Keep these rows; None when none of them asks."""
        keep = np.isin(self.rows, rows)
        if not keep.any():
            return None
        return RowLogprobs(self.rows[keep], self.counts[keep], self.drawn[keep], self.ids[keep], self.values[keep])

    def pack(self, rows: Int32) -> Logprobs:
        """Write them as they travel; `rows` has the row of each of the message's tokens, all of these among them."""
        index_of = {row: index for index, row in enumerate(rows.tolist())}
        asked = np.arange(self.ids.shape[1]) < self.counts[:, None]
        return Logprobs(
            np.array([index_of[row] for row in self.rows.tolist()], dtype="<i4").tobytes(),
            self.drawn.astype("<f4").tobytes(),
            asked.sum(axis=1).astype("u1").tobytes(),
            self.ids[asked].astype("<i4").tobytes(),
            self.values[asked].astype("<f4").tobytes(),
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """R rows of at most W tokens each; a row's slot and its owner's incarnation first."""

    rows: Int32
    incarnations: Int64
    draws: Int32
    """[R]: how many tokens the plan let each row bring."""
    tokens: Int64
    """[R, W]: a row's tokens first, then anything."""
    counts: Int32
    """[R]: how many each row brings, from 1 to `draws`."""
    codes: Codes
    """[R]: `FinishCode` with a row's last token."""
    logprobs: RowLogprobs | None = None
    """None when no row asks."""

    @property
    def is_single(self) -> bool:
        """Whether each row brings exactly one token."""
        return self.tokens.shape[1] == 1

    def take(self, mask: npt.NDArray[np.bool_]) -> Sampled:
        """Keep the rows where `mask` is True."""
        rows = self.rows[mask]
        return Sampled(
            rows=rows,
            incarnations=self.incarnations[mask],
            draws=self.draws[mask],
            tokens=self.tokens[mask],
            counts=self.counts[mask],
            codes=self.codes[mask],
            logprobs=None if self.logprobs is None else self.logprobs.of(rows),
        )

    def flatten(self) -> tuple[Int32, Int64, Codes]:
        """Write one entry a token: the row, the token, and the finish code, which stands with a row's last token."""
        if self.is_single:
            return self.rows, self.tokens[:, 0], self.codes
        brought = np.arange(self.tokens.shape[1]) < self.counts[:, None]
        codes = np.zeros(self.tokens.shape, dtype=np.uint8)
        codes[np.arange(self.rows.size), self.counts - 1] = self.codes
        return np.repeat(self.rows, self.counts), self.tokens[brought], codes[brought]


NOTHING_SAMPLED = Sampled(
    rows=np.empty(0, np.int32),
    incarnations=np.empty(0, np.int64),
    draws=np.empty(0, np.int32),
    tokens=np.empty((0, 1), np.int64),
    counts=np.empty(0, np.int32),
    codes=np.empty(0, np.uint8),
)
