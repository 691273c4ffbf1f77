from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.logits import ban_end_ids, scale, truncate
from lockstep_worker.sampling.sampler import exponential_noise, sample
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import Needs, SamplingParams
from support.worlds.sampled import Rows, exponential_one, keep_one_by_one

INF = float("inf")
ALL = Needs(sampling=True, truncation=True, min_tokens=True, bias=True)
GREEDY = SamplingParams(max_tokens=100, temperature=0.0)


def params_of(temperature: float = 1.0, **options: object) -> SamplingParams:
    return SamplingParams(max_tokens=100, temperature=temperature, **options)  # type: ignore[arg-type]


def random_logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


# --- greedy -----------------------------------------------------------------------------------------------------------
def test_a_greedy_tie_goes_to_the_lowest_id() -> None:
    rows = Rows([GREEDY] * 3)
    logits = torch.zeros(3, 500)
    logits[0, [7, 8, 400]] = 2.0
    logits[1, 499] = 1.0
    for needs in (Needs(), ALL):
        assert rows.draw(logits, needs).tolist() == [7, 499, 0]


def test_greedy_rows_are_not_touched_by_sampled_neighbours() -> None:
    logits = random_logits(1, 64, 100)
    rows = Rows([GREEDY if index % 2 else params_of(1.5, seed=index, top_k=5) for index in range(64)])
    assert rows.draw(logits)[1::2].tolist() == logits.argmax(dim=1)[1::2].tolist()


# --- what keys a draw -------------------------------------------------------------------------------------------------
def test_a_row_draws_the_same_alone_in_any_batch_in_any_order_and_in_any_slot() -> None:
    rng = random.Random(4)
    params = [params_of(rng.choice([0.3, 1.0, 2.0]), seed=rng.getrandbits(63), top_p=0.95) for _ in range(40)]
    lengths = [rng.randrange(1, 300) for _ in params]
    logits = random_logits(2, len(params), 200)
    alone = [
        int(Rows([one], [length]).draw(logits[index : index + 1])[0])
        for index, (one, length) in enumerate(zip(params, lengths, strict=True))
    ]
    for _ in range(5):
        order = rng.sample(range(len(params)), rng.randrange(1, len(params) + 1))
        batch = Rows([params[index] for index in order], [lengths[index] for index in order])
        assert batch.draw(logits[order]).tolist() == [alone[index] for index in order]


def test_a_row_draws_the_same_whatever_its_neighbours_make_the_sampler_do() -> None:
    rows = Rows([params_of(seed=seed) for seed in range(300)])
    logits = random_logits(6, 300, 400)
    plain = rows.draw(logits, Needs(sampling=True, truncation=False, min_tokens=False))
    assert plain.tolist() == rows.draw(logits, ALL).tolist()


def test_the_seed_and_the_index_both_change_the_draw() -> None:
    logits = torch.zeros(1, 1000)
    draws = {
        (seed, length): int(Rows([params_of(seed=seed)], [length]).draw(logits)[0])
        for seed in (0, 1, 2, 2**63 - 1)
        for length in range(1, 20)
    }
    assert len(set(draws.values())) > 0.9 * len(draws)
    assert draws == {key: int(Rows([params_of(seed=key[0])], [key[1]]).draw(logits)[0]) for key in draws}


def test_the_noise_is_the_hash_of_seed_index_and_column() -> None:
    """Guards every seeded request of every user: another generator would give them other tokens."""
    keys = [(0, 1), (42, 7), (2**63 - 1, 1000)]
    noise = exponential_noise(torch.tensor([seed for seed, _ in keys]), torch.tensor([index for _, index in keys]), 50)
    expected = [[exponential_one(seed, index, column) for column in range(50)] for seed, index in keys]
    np.testing.assert_allclose(noise.numpy(), expected, rtol=1e-6)


def test_neighbouring_seeds_and_indices_are_not_correlated() -> None:
    columns = 4096
    noise = exponential_noise(torch.arange(8).repeat_interleave(8), torch.arange(8).repeat(8), columns).numpy()
    correlation = np.corrcoef(noise)
    np.fill_diagonal(correlation, 0)
    assert abs(correlation).max() < 5 / columns**0.5


def test_the_noise_is_exponential_and_never_zero() -> None:
    noise = exponential_noise(torch.arange(100), torch.full((100,), 3), 5000).numpy().ravel()
    assert noise.min() > 0
    assert np.isfinite(noise).all()
    edges = -np.log1p(-np.linspace(0, 1, 101)[:-1])  # a hundred equally likely cells
    counts = np.histogram(noise, [*edges, np.inf])[0]
    assert chi_square(counts, np.full(100, noise.size / 100)) < CRITICAL_99


# --- distributions ----------------------------------------------------------------------------------------------------
CRITICAL_99 = 160.0
"""Chi-square with 99 degrees of freedom stays below this with probability 0.9999."""


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_draws_follow_the_softmax_of_scaled_logits(temperature: float) -> None:
    count, width = 10_000, 30
    logits = random_logits(9, 1, width) / 3
    noise_rows = Rows([params_of(temperature, seed=index * 7919) for index in range(count)])
    drawn = noise_rows.draw(logits.expand(count, -1)).numpy()
    expected = (logits[0].double() / temperature).softmax(0).numpy() * count
    common = expected >= 5
    counts = np.bincount(drawn, minlength=width)
    pooled_counts = np.append(counts[common], counts[~common].sum())
    pooled_expected = np.append(expected[common], max(expected[~common].sum(), 1e-9))
    if pooled_expected[-1] < 5:
        pooled_counts, pooled_expected = pooled_counts[:-1], pooled_expected[:-1]
    assert chi_square(pooled_counts, pooled_expected) < 70  # 29 degrees of freedom: p < 3e-5


def test_draws_of_one_request_over_its_tokens_follow_the_softmax_too() -> None:
    count = 10_000
    rows = Rows([params_of(seed=12345)] * count, list(range(1, count + 1)))
    counts = np.bincount(rows.draw(torch.zeros(count, 20)).numpy(), minlength=20)
    assert chi_square(counts, np.full(20, count / 20)) < 55  # 19 degrees of freedom: p < 3e-5


# --- truncation -------------------------------------------------------------------------------------------------------
TRUNCATIONS = list(itertools.product([1.0, 0.9, 0.5, 1e-6], [0, 1, 3, 50, 10_000], [0.0, 0.05, 1.0]))


def test_truncation_keeps_exactly_the_reference_set() -> None:
    params = [params_of(0.8, top_p=top_p, top_k=top_k, min_p=min_p) for top_p, top_k, min_p in TRUNCATIONS]
    for seed in range(20):
        logits = random_logits(seed, len(params), 60).round(decimals=seed % 3)  # rounding makes ties
        rows = Rows(params)
        shaped = scale(logits, rows.rows, rows.columns)
        kept = truncate(shaped, rows.rows, rows.columns)
        for index, one in enumerate(params):
            expected = keep_one_by_one(shaped[index].numpy(), one)
            assert set(np.flatnonzero(np.isfinite(kept[index].numpy()))) == expected, (seed, one)
            ids = sorted(expected)
            assert torch.equal(kept[index, ids], shaped[index, ids])


def test_a_draw_never_leaves_the_kept_set() -> None:
    params = [params_of(2.0, top_p=0.7, top_k=8, min_p=0.02, seed=seed) for seed in range(500)]
    logits = random_logits(3, 1, 80)
    rows = Rows(params)
    drawn = set(rows.draw(logits.expand(500, -1)).tolist())
    kept = keep_one_by_one((logits[0] - logits.max()).numpy() / 2.0, params[0])
    assert len(drawn) > 2
    assert drawn <= kept


def test_rows_that_do_not_truncate_keep_everything_beside_rows_that_do() -> None:
    rows = Rows([params_of(), params_of(top_k=1)])
    kept = truncate(random_logits(5, 2, 40), rows.rows, rows.columns)
    assert torch.isfinite(kept).sum(dim=1).tolist() == [40, 1]


# --- min_tokens -------------------------------------------------------------------------------------------------------
def test_end_ids_and_stop_ids_are_banned_until_min_tokens() -> None:
    params = params_of(0.0, end_ids=(0, 4), stop_token_ids=(2,), min_tokens=3)
    logits = torch.tensor([[9.0, 1.0, 8.0, 2.0, 7.0]])
    for generated, token in ((0, 3), (2, 3), (3, 0), (4, 0)):
        rows = Rows([params], [Rows.PROMPT + generated])
        assert rows.draw(logits).tolist() == [token], generated


def test_a_ban_touches_its_own_row_and_ids_only() -> None:
    params = [params_of(end_ids=(0, 3), min_tokens=1), params_of(end_ids=(0, 3)), params_of(min_tokens=5)]
    rows = Rows(params)
    banned = torch.isinf(ban_end_ids(torch.zeros(3, 6), rows.rows, rows.columns.length[:3], rows.columns))
    assert [torch.nonzero(row).flatten().tolist() for row in banned] == [[0, 3], [], []]


# --- extremes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(8, 50, 300)
    rows = Rows([params_of(temperature, seed=seed) for seed in range(50)])
    assert rows.draw(logits).tolist() == logits.argmax(dim=1).tolist()


def test_a_huge_temperature_is_uniform_over_what_is_not_banned() -> None:
    logits = random_logits(8, 1, 40)
    logits[0, 20:] = -INF
    rows = Rows([params_of(3e38, seed=seed) for seed in range(4000)])
    counts = np.bincount(rows.draw(logits.expand(4000, -1)).numpy(), minlength=40)
    assert counts[20:].sum() == 0
    assert chi_square(counts[:20], np.full(20, 200)) < 55


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1}])
def test_huge_and_infinite_logits_draw_the_best(options: dict[str, float]) -> None:
    logits = torch.zeros(4, 10)
    logits[0, 6] = 3e38
    logits[1, 5] = INF
    logits[2] = -INF
    logits[2, 4] = -3e38
    logits[3] = -3e38
    logits[3, 8] = 3e38
    rows = Rows([params_of(seed=seed, **options) for seed in range(4)])
    assert rows.draw(logits).tolist() == [6, 5, 4, 8]


# --- a whole step -----------------------------------------------------------------------------------------------------
def test_a_step_writes_token_length_and_code_of_its_rows_only() -> None:
    rows = Rows([GREEDY, params_of(0.0, end_ids=(3,)), GREEDY])
    logits = torch.zeros(2, 5)
    logits[:, 3] = 1.0
    drawn = sample(logits, rows.rows[:2], rows.columns, Needs())
    assert (drawn.tokens_RW.tolist(), drawn.codes.tolist()) == ([[3], [3]], [0, FinishCode.END_ID])
    assert drawn.counts is None
    assert rows.columns.last_token[:3].tolist() == [3, 3, 0]
    assert rows.columns.length[:3].tolist() == [Rows.PROMPT + 1, Rows.PROMPT + 1, Rows.PROMPT]
    assert rows.columns.finished[:3].tolist() == [0, FinishCode.END_ID, 0]


def state_of(columns: Columns) -> dict[str, list[object]]:
    return {name: column.tolist() for name, column in vars(columns).items() if isinstance(column, torch.Tensor)}


def test_a_row_that_finished_keeps_its_state_in_later_steps() -> None:
    rows = Rows([params_of(0.0, end_ids=(3,))])
    logits = torch.eye(5)[3:4]
    sample(logits, rows.rows, rows.columns, Needs())
    before = state_of(rows.columns)
    drawn = sample(torch.eye(5)[1:2], rows.rows, rows.columns, Needs())
    assert drawn.codes.tolist() == [FinishCode.END_ID]
    assert state_of(rows.columns) == before
