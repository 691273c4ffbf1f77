"""Which of a row's draws are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lockstep_worker.sampling.sampler import sample, sample_drafted
from lockstep_worker.sampling.verify import Draws, count_kept
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import SamplingParams
from support.worlds.sampled import ALL, Rows

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("drawn", "drafts", "codes", "kept"),
    [
        pytest.param([4, 5, 6], [4, 5, -1], [0, 0, 0], 3, id="all right"),
        pytest.param([4, 5, 6], [4, 9, -1], [0, 0, 0], 2, id="the second wrong"),
        pytest.param([4, 5, 6], [9, 5, -1], [0, 0, 0], 1, id="right behind a wrong one"),
        pytest.param([4, 5, 6], [-1, -1, -1], [0, 0, 0], 1, id="no draft"),
        pytest.param([4, 5, 6], [4, 5, -1], [0, 1, 0], 2, id="right, and the end"),
    ],
)
def test_drafts_hold_up_to_the_first_that_is_wrong_or_ends_the_row(
    drawn: list[int], drafts: list[int], codes: list[int], kept: int
) -> None:
    counts = count_kept(torch.tensor([drawn]), torch.tensor([codes], dtype=torch.uint8), torch.tensor([drafts]))
    assert counts.tolist() == [kept]


def test_draws_are_laid_out_row_by_row() -> None:
    slots, draws = np.array([7, 2, 4], dtype=np.int32), np.array([1, 3, 2], dtype=np.int32)
    drafts = np.array([[0, 0], [41, 17], [8, 99]], dtype=np.int32)
    laid_out = Draws.lay_out(slots, draws, drafts, CPU)
    assert laid_out.rows.tolist() == [7, 2, 2, 2, 4, 4]
    assert laid_out.offsets.tolist() == [0, 0, 1, 2, 0, 1]
    assert laid_out.entries.tolist() == [0, 3, 4, 5, 6, 7]
    assert laid_out.drafts_RW.tolist() == [[-1, -1, -1], [41, 17, -1], [8, -1, -1]]


def test_right_drafts_leave_the_columns_as_one_token_a_run_does() -> None:
    params = [
        SamplingParams(max_tokens=50, temperature=temperature, seed=seed, end_ids=(3,))
        for seed, temperature in enumerate((0.0, 0.8, 1.5))
    ]
    logits = torch.randn(3, 4, 1000, generator=torch.Generator().manual_seed(1)) * 3  # a row's four next places
    single = Rows(params)
    drawn = torch.stack([sample(logits[:, i], single.rows, single.columns, ALL).tokens_RW[:, 0] for i in range(4)], 1)
    several = Rows(params)
    slots, draws = np.arange(3, dtype=np.int32), np.full(3, 4, dtype=np.int32)
    laid_out = Draws.lay_out(slots, draws, drawn[:, :3].numpy().astype(np.int32), CPU)
    at_once = sample_drafted(logits.flatten(0, 1), several.rows, laid_out, several.columns, ALL)
    assert at_once.tokens_RW.tolist() == drawn.tolist()
    assert at_once.counts is not None and at_once.counts.tolist() == [4, 4, 4]
    for name in ("last_token", "length", "finished"):
        assert torch.equal(getattr(several.columns, name), getattr(single.columns, name)), name


def test_a_row_that_had_finished_keeps_its_state_whatever_its_drafts() -> None:
    rows = Rows([SamplingParams(max_tokens=9, temperature=0.0, end_ids=(3,))])
    sample(torch.eye(1000)[3:4], rows.rows, rows.columns, ALL)
    length = rows.columns.length.tolist()
    laid_out = Draws.lay_out(
        np.zeros(1, dtype=np.int32), np.array([2], dtype=np.int32), np.array([[5]], dtype=np.int32), CPU
    )
    drawn = sample_drafted(torch.eye(1000)[5:7], rows.rows, laid_out, rows.columns, ALL)
    assert drawn.codes.tolist() == [FinishCode.END_ID]
    assert rows.columns.length.tolist() == length
    assert rows.columns.last_token[:1].tolist() == [3]
