"""What is declared about each sampling parameter, and that everything which depends on it follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from lockstep_worker.errors import RequestError
from lockstep_worker.executor.intake import Limits, check_request
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import (
    FLOAT32,
    NEEDS,
    PARAMETERS,
    REASONS,
    Needs,
    SamplingParams,
    find_reason,
    list_needs,
)

LIMITS = Limits(vocab_size=100, max_model_len=64, num_blocks=8, block_size=16)
NUMBERS = [name for name, one in PARAMETERS.items() if one.width == 1 and name not in {"logit_bias", "max_tokens"}]


def test_every_field_is_declared_and_nothing_else() -> None:
    assert list(PARAMETERS) == [field.name for field in msgspec.structs.fields(SamplingParams)]


def test_a_request_that_leaves_all_out_is_within_every_range_and_takes_the_batched_path() -> None:
    plain = SamplingParams(max_tokens=4)
    check_request(NewRequest(1, [1], plain), LIMITS)
    assert find_reason(plain) == ""
    assert list_needs(plain) == ["sampling"]
    assert list_needs(msgspec.structs.replace(plain, temperature=0.0)) == []


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_taken_and_what_lies_beyond_is_refused_by_name(name: str) -> None:
    declared = PARAMETERS[name]
    least = 1 if isinstance(declared.high, int) and not isinstance(declared.off, float) else 1e-3 * declared.high
    for good in (declared.low, declared.high):
        field: dict[str, Any] = {name: good}
        check_request(NewRequest(1, [1], SamplingParams(max_tokens=4, **field)), LIMITS)
    for bad in (declared.low - 1, declared.high + least, float("nan")):
        field = {name: bad}
        with pytest.raises(RequestError, match=f"{name} is .*; the limits are {declared.low} to ") as refused:
            check_request(NewRequest(1, [1], SamplingParams(max_tokens=4, **field)), LIMITS)
        assert refused.value.field == name


@pytest.mark.parametrize("name", [name for name, one in PARAMETERS.items() if one.column])
def test_each_declared_column_is_on_the_device_with_its_type_and_width(name: str) -> None:
    declared, columns = PARAMETERS[name], Columns(2, torch.device("cpu"), vocab_size=10)
    column = getattr(columns, name)
    assert column.dtype == getattr(torch, declared.column)
    assert column.shape == ((3,) if declared.width == 1 else (3, declared.width))


def test_each_need_is_a_part_of_the_sampler_and_each_is_asked_for_by_some_parameter() -> None:
    assert {one.need for one in PARAMETERS.values()} - {""} == set(NEEDS)
    assert Needs(**dict.fromkeys(NEEDS, True)).penalties


@pytest.mark.parametrize(
    "name", [name for name, one in PARAMETERS.items() if one.need not in {"", "truncation", "min_p"}]
)
def test_any_value_but_the_one_without_effect_asks(name: str) -> None:
    declared = PARAMETERS[name]
    other = ((1, 2.0),) if name == "logit_bias" else declared.high
    greedy = SamplingParams(max_tokens=4, temperature=0.0)
    assert declared.need not in list_needs(msgspec.structs.replace(greedy, **{name: declared.off}))
    assert declared.need in list_needs(msgspec.structs.replace(greedy, **{name: other}))


def test_truncation_is_not_asked_for_by_a_greedy_request() -> None:
    assert list_needs(SamplingParams(max_tokens=4, temperature=0.0, top_p=0.5, top_k=3, min_p=0.1)) == []
    assert list_needs(SamplingParams(max_tokens=4, top_k=3)) == ["sampling", "truncation"]
    assert list_needs(SamplingParams(max_tokens=4, min_p=0.1)) == ["sampling", "min_p"]


def test_reasons_are_told_in_their_order() -> None:
    both = SamplingParams(max_tokens=4, stop_token_ids=(3,), logprobs=0)
    assert REASONS == ("logprobs", "stop_words")
    assert find_reason(both) == REASONS[0]


def test_the_largest_float32_is_one() -> None:
    assert torch.finfo(torch.float32).max == FLOAT32
