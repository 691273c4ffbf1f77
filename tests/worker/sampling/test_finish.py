"""Device finish codes equal the host's, whatever holds at once; END_ID wins over LENGTH, LENGTH over STOP_WORDS."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.finish import finish_codes
from lockstep_worker.schedule.finish import finish_code
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import MAX_STOP_TOKEN_IDS, SamplingParams
from support.worlds.tables import CPU

TOKEN = 7
LIMIT = 10
MANY = tuple(range(100, 100 + MAX_STOP_TOKEN_IDS - 1))
IDS = {"none": (), "hit": (TOKEN,), "miss": (8,), "hit last of many": (*MANY, TOKEN)}
CASES = list(itertools.product(IDS, IDS, range(LIMIT - 2, LIMIT + 2)))


def expected(end: str, stop: str, length: int) -> FinishCode:
    if "hit" in end:
        return FinishCode.END_ID
    if length >= LIMIT:
        return FinishCode.LENGTH
    return FinishCode.STOP_WORDS if "hit" in stop else FinishCode.NOT_FINISHED


def params_of(end: str, stop: str) -> SamplingParams:
    return SamplingParams(max_tokens=5, end_ids=IDS[end], stop_token_ids=IDS[stop])


def write(columns: Columns, slot: int, params: SamplingParams, length: int) -> None:
    columns.admit({slot: Sequence(slot, params, 2, LIMIT, np.zeros(length, dtype=np.int32))})


@pytest.mark.parametrize(("end", "stop", "length"), CASES)
def test_the_host_decides_by_the_order(end: str, stop: str, length: int) -> None:
    assert finish_code(TOKEN, length, LIMIT, params_of(end, stop)) == expected(end, stop, length)


def test_the_device_decides_all_cases_of_one_batch_alike() -> None:
    columns = Columns(len(CASES) + 1, CPU, vocab_size=50)
    for slot, (end, stop, length) in enumerate(CASES, start=1):
        write(columns, slot, params_of(end, stop), length)
    rows = torch.arange(1, len(CASES) + 1).flip(0)
    codes = finish_codes(torch.full((len(CASES),), TOKEN), columns.length[rows], rows, columns)
    assert codes.dtype == torch.uint8
    assert codes.tolist() == [expected(*case) for case in reversed(CASES)]


def test_the_padding_of_unused_ids_ends_nothing() -> None:
    columns = Columns(1, CPU, vocab_size=50)
    write(columns, 0, SamplingParams(max_tokens=5), 3)
    assert finish_codes(torch.tensor([0]), columns.length[:1], torch.tensor([0]), columns).tolist() == [0]
