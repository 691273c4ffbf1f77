"""Logit bias and penalties on the device, against transformers and against a reference that takes one id at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from lockstep_worker.sampling.counts import TokenCounts
from lockstep_worker.sampling.logits import add_bias, ban_end_ids, penalize
from lockstep_worker.sampling.sampler import sample
from lockstep_worker.wire.params import SamplingParams
from support.worlds.sampled import EVERYTHING, Rows, shape_one_by_one

V = 40


def params_of(temperature: float = 1.0, **options: object) -> SamplingParams:
    return SamplingParams(max_tokens=100, temperature=temperature, **options)  # type: ignore[arg-type]


def random_params(rng: random.Random) -> SamplingParams:
    """Any mix of the three; often one of them alone, or none."""
    ids = rng.sample(range(V), rng.randrange(1, 9))
    bias = tuple((token, rng.choice([-100.0, 100.0, -3.5, 0.0, 2.25])) for token in ids)
    return params_of(
        rng.choice([0.0, 0.7, 1.3]),
        seed=rng.getrandbits(63),
        top_k=rng.choice([0, 5]),
        top_p=rng.choice([1.0, 0.8]),
        repetition_penalty=rng.choice([1.0, 1.0, 0.5, 1.7]),
        presence_penalty=rng.choice([0.0, 0.0, -2.0, 0.75]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.5, 2.0]),
        logit_bias=rng.choice([(), bias]),
        min_tokens=rng.choice([0, 0, 6]),
        end_ids=rng.choice([(), (0,), (3, 7)]),
    )


def random_history(rng: random.Random) -> list[int]:
    return [rng.randrange(V) for _ in range(Rows.PROMPT + rng.randrange(12))]


def random_batch(seed: int, size: int = 60) -> tuple[list[SamplingParams], list[list[int]], torch.Tensor]:
    rng = random.Random(seed)
    logits = torch.randn(size, V, generator=torch.Generator().manual_seed(seed)) * 4
    return [random_params(rng) for _ in range(size)], [random_history(rng) for _ in range(size)], logits


def shape(rows: Rows, logits: torch.Tensor) -> torch.Tensor:
    for one in (add_bias, penalize):
        logits = one(logits, rows.rows, rows.columns)
    return ban_end_ids(logits, rows.rows, rows.columns.length[rows.rows], rows.columns)


@pytest.mark.parametrize("penalty", [0.5, 1.2, 3.0])
def test_the_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    _, histories, logits = random_batch(1)
    rows = Rows([params_of(repetition_penalty=penalty)] * len(histories), histories=histories, width=V)
    expected = [
        RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), logits[index : index + 1].clone())[0]
        for index, history in enumerate(histories)
    ]
    assert torch.equal(penalize(logits, rows.rows, rows.columns), torch.stack(expected))


@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_shaped_as_the_reference_shapes_it(seed: int) -> None:
    params, histories, logits = random_batch(seed)
    shaped = shape(Rows(params, histories=histories, width=V), logits).numpy()
    for row, one, history, found in zip(logits.numpy(), params, histories, shaped, strict=True):
        expected = shape_one_by_one(row, one, history, Rows.PROMPT)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4, err_msg=str(one))


def test_presence_and_frequency_know_the_output_only() -> None:
    history = [1, 1, 2, 2, 3] + [4, 4, 4, 1]
    rows = Rows([params_of(presence_penalty=1.0, frequency_penalty=0.5)], histories=[history], width=6)
    assert penalize(torch.zeros(1, 6), rows.rows, rows.columns).tolist() == [[0.0, -1.5, 0.0, 0.0, -2.5, 0.0]]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_bias_of_minus_100_bans_and_of_plus_100_forces(temperature: float) -> None:
    logits = torch.zeros(300, V)
    logits[:, 5] = 90.0
    ban = Rows([params_of(temperature, seed=s, logit_bias=((5, -100.0),)) for s in range(300)], width=V)
    assert 5 not in ban.draw(logits, EVERYTHING).tolist()
    force = Rows([params_of(temperature, seed=s, logit_bias=((9, 100.0),)) for s in range(300)], width=V)
    assert set(force.draw(logits, EVERYTHING).tolist()) == {9}
    repeated = params_of(temperature, logit_bias=((9, 100.0),), repetition_penalty=10.0, frequency_penalty=2.0)
    assert Rows([repeated], histories=[[9] * 100], width=V).draw(logits[:1], EVERYTHING).tolist() == [9]


def test_a_forced_end_id_still_waits_for_min_tokens() -> None:
    forced = params_of(seed=1, end_ids=(2,), min_tokens=3, logit_bias=((2, 100.0),))
    logits = torch.zeros(1, V)
    for generated, ends in ((0, False), (2, False), (3, True)):
        history = [7] * (Rows.PROMPT + generated)
        token = int(Rows([forced], histories=[history], width=V).draw(logits, EVERYTHING)[0])
        assert (token == 2) == ends, generated


def test_a_row_that_bans_everything_still_draws_a_token() -> None:
    banned = tuple((token, -100.0) for token in range(V))
    rows = Rows([params_of(t, logit_bias=banned, top_p=p) for t in (0.0, 1.0) for p in (1.0, 0.5)], width=V)
    assert all(0 <= token < V for token in rows.draw(torch.zeros(4, V), EVERYTHING).tolist())


@pytest.mark.parametrize("seed", range(5))
def test_a_row_draws_the_same_alone_and_in_any_batch(seed: int) -> None:
    params, histories, logits = random_batch(seed)
    alone = [
        int(Rows([one], histories=[history], width=V).draw(logits[index : index + 1], EVERYTHING)[0])
        for index, (one, history) in enumerate(zip(params, histories, strict=True))
    ]
    order = random.Random(seed).sample(range(len(params)), len(params))
    batch = Rows([params[index] for index in order], histories=[histories[index] for index in order], width=V)
    assert batch.draw(logits[order], EVERYTHING).tolist() == [alone[index] for index in order]


def test_rows_that_ask_for_nothing_pass_bit_for_bit_beside_rows_that_ask() -> None:
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(3))
    logits[0, 0] = -0.0
    asking = params_of(repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=1.0, logit_bias=((0, 5.0),))
    rows = Rows([params_of(), asking], histories=[[1] * 9] * 2, width=V)
    shaped = shape(rows, logits)
    assert torch.equal(shaped[0], logits[0])
    assert not torch.equal(shaped[1], logits[1])


def test_what_the_device_counts_step_by_step_is_what_an_admission_counts() -> None:
    _, histories, _ = random_batch(4)
    asking = [params_of(seed=seed, frequency_penalty=0.5, repetition_penalty=1.2) for seed in range(len(histories))]
    rows = Rows(asking, histories=histories, width=V)
    for step in range(6):
        logits = torch.randn(len(asking), V, generator=torch.Generator().manual_seed(step))
        tokens = sample(logits, rows.rows, rows.columns, EVERYTHING).tokens_RW[:, 0]
        histories = [[*history, token] for history, token in zip(histories, tokens.tolist(), strict=True)]
    anew = Rows(asking, histories=histories, width=V)
    for found, expected in zip(rows.columns.counts.read(rows.rows), anew.columns.counts.read(rows.rows), strict=True):
        assert torch.equal(found, expected)


def test_the_token_of_a_row_that_had_finished_is_not_counted() -> None:
    rows = Rows([params_of(0.0, frequency_penalty=1.0, end_ids=(3,))], width=V)
    sample(torch.eye(V)[3:4], rows.rows, rows.columns, EVERYTHING)
    sample(torch.eye(V)[4:5], rows.rows, rows.columns, EVERYTHING)
    assert rows.columns.counts.read(rows.rows)[1][0].nonzero().flatten().tolist() == [3]


def test_the_table_of_counts_grows_with_the_rows_that_ask_and_has_an_upper_bound() -> None:
    rng = random.Random(6)
    counts = TokenCounts(10, V, torch.device("cpu"))
    owners: dict[int, tuple[list[int], int]] = {}
    assert counts.num_rows == 1
    for _ in range(400):
        slot = rng.randrange(10)
        if rng.random() < 0.4:
            counts.clear(slot)
            owners.pop(slot, None)
        else:
            owners[slot] = (random_history(rng), Rows.PROMPT)
            counts.fill(slot, np.array(owners[slot][0], dtype=np.int32), Rows.PROMPT)
        is_seen, generated = counts.read(torch.arange(10))
        for slot in range(10):
            history, prompt = owners.get(slot, ([], 0))
            assert is_seen[slot].tolist() == [token in history for token in range(V)]
            assert generated[slot].tolist() == [history[prompt:].count(token) for token in range(V)]
    assert counts.num_rows == 11
