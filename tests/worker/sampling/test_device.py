"""The sampler's kernels under whole steps: the reference's tokens, spare rows, and steps replayed from a graph."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from lockstep_worker.sampling import device
from lockstep_worker.sampling.columns import Columns
from lockstep_worker.sampling.logits import keep_min_p, keep_top, scale, truncate
from lockstep_worker.sampling.sampler import Drawn, exponential_noise, sample, sample_drafted
from lockstep_worker.sampling.verify import Draws
from lockstep_worker.schedule.sequence import Sequence
from lockstep_worker.wire.messages import FinishCode
from lockstep_worker.wire.params import Needs, SamplingParams
from support.worlds.sampled import Rows
from support.worlds.tables import VOCAB, random_table

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # inf - inf, as on a GPU
CPU = torch.device("cpu")
EVERYTHING = Needs(sampling=True, truncation=True, min_p=True, min_tokens=True, bias=True, penalties=True)
STATE = ("last_token", "length", "finished")


def twins(seed: int) -> tuple[Columns, Columns, torch.Tensor]:
    """The same columns twice, the second for the kernels, and some of their slots with spare ones behind them."""
    rng = random.Random(seed)
    table = random_table(rng, 12)
    newcomers = {slot: one for slot, one in enumerate(table.sequences) if one is not None}
    both = [Columns(table.num_slots, CPU, VOCAB) for _ in range(2)]
    for columns in both:
        columns.admit(newcomers)
        columns.finished[list(newcomers)[0]] = int(FinishCode.LENGTH)
    both[1].in_kernels = True
    slots = rng.sample(list(newcomers), rng.randrange(1, len(newcomers) + 1))
    return both[0], both[1], torch.tensor(slots + [both[0].spare_slot] * rng.randrange(3))


def random_logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def check_same(found: Drawn, expected: Drawn) -> None:
    assert torch.equal(found.tokens_RW, expected.tokens_RW)
    assert torch.equal(found.codes, expected.codes)
    assert (found.counts is None) == (expected.counts is None)


@pytest.mark.parametrize("seed", range(8))
def test_steps_in_kernels_are_those_of_the_reference(seed: int) -> None:
    plain, kernels, rows = twins(seed)
    for step in range(3):
        logits = random_logits(seed * 10 + step, len(rows), VOCAB)
        expected, found = (sample(logits, rows, columns, EVERYTHING) for columns in (plain, kernels))
        check_same(found, expected)
        assert found.pairs is not None and found.pairs.dtype == torch.int32
        assert found.pairs.tolist() == torch.stack((expected.tokens_RW[:, 0], expected.codes.long()), 1).tolist()
        for name in STATE:
            assert torch.equal(getattr(kernels, name), getattr(plain, name)), name
        for one, other in zip(kernels.counts.read(rows), plain.counts.read(rows), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("seed", range(4))
def test_drafts_are_verified_in_kernels_as_in_the_reference(seed: int) -> None:
    params = [
        SamplingParams(max_tokens=50, temperature=temperature, seed=seed, end_ids=(3,), min_tokens=2)
        for temperature in (0.0, 0.8, 1.5)
    ]
    plain, kernels = Rows(params, width=30), Rows(params, width=30)
    kernels.columns.in_kernels = True
    draws, drafts = np.array([3, 1, 4], dtype=np.int32), np.full((3, 3), 5, dtype=np.int32)
    laid_out = Draws.lay_out(np.arange(3, dtype=np.int32), draws, drafts, CPU)
    logits = random_logits(seed, 8, 30)
    logits[:, 5] += 8
    expected, found = (sample_drafted(logits, one.rows, laid_out, one.columns, EVERYTHING) for one in (plain, kernels))
    check_same(found, expected)
    assert found.counts is not None and expected.counts is not None
    assert found.counts.tolist() == expected.counts.tolist() != [1, 1, 1]
    for name in STATE:
        assert torch.equal(getattr(kernels.columns, name), getattr(plain.columns, name)), name


def test_the_spare_slot_keeps_its_state_and_touches_nobody() -> None:
    columns = Columns(2, CPU, VOCAB)
    columns.in_kernels = True
    before = {name: getattr(columns, name).clone() for name in STATE}
    rows = torch.full((4,), columns.spare_slot)
    assert columns.spare_slot == 2
    for needs in (Needs(), EVERYTHING):
        assert sample(random_logits(1, 4, VOCAB), rows, columns, needs).codes.tolist() == [int(FinishCode.END_ID)] * 4
    for name in STATE:
        assert torch.equal(getattr(columns, name), before[name]), name
    assert not columns.counts.read(rows)[0].any()


def test_a_row_draws_the_same_alone_and_beside_rows_that_ask_for_everything() -> None:
    rng = random.Random(5)
    plain = [SamplingParams(max_tokens=9, temperature=rng.choice([0.0, 1.0, 3.0]), seed=seed) for seed in range(6)]
    asking = [
        SamplingParams(max_tokens=9, seed=seed, top_p=0.6, top_k=9, min_p=0.1, presence_penalty=1.0)
        for seed in range(6)
    ]
    logits = random_logits(3, 12, 50)
    rows = Rows(plain + asking, width=50)
    nothing = torch.zeros(12, dtype=torch.int64)
    together = device.draw(logits, rows.rows, nothing, rows.columns, EVERYTHING).tolist()
    alone = [
        device.draw(logits[slot, None], rows.rows[slot, None], nothing[:1], rows.columns, Needs(sampling=True))
        for slot in range(6)
    ]
    assert together[:6] == [int(one) for one in alone]


def test_top_and_min_p_one_after_the_other_keep_what_truncation_keeps() -> None:
    rng = random.Random(2)
    params = [
        SamplingParams(
            max_tokens=9,
            temperature=rng.choice([0.5, 1.0, 2.0]),
            top_p=rng.choice([1.0, 0.9, 0.5]),
            top_k=rng.choice([0, 3, 20]),
            min_p=rng.choice([0.0, 0.03, 0.3, 1.0]),
        )
        for _ in range(200)
    ]
    rows = Rows(params, width=60)
    scaled = scale(random_logits(4, 200, 60), rows.rows, rows.columns)
    kept = keep_min_p(keep_top(scaled, rows.rows, rows.columns), rows.rows, rows.columns)
    assert torch.equal(kept, truncate(scaled, rows.rows, rows.columns))
    assert 0 < torch.isfinite(kept).sum() < 0.8 * kept.numel()


# --- on a GPU ---------------------------------------------------------------------------------------------------------
WIDTH, SLOTS = 32_003, 64
DRAWS = Needs(sampling=True)


def columns_of(seed: int, place: torch.device, needs: Needs) -> Columns:
    """Random requests in all slots; where penalties are asked for, all ask, so that their table grows no more."""
    columns = Columns(SLOTS, place, WIDTH)
    admit_random(columns, seed, needs)
    return columns


def admit_random(columns: Columns, seed: int, needs: Needs) -> None:
    rng = random.Random(seed)
    newcomers = {}
    for slot in range(SLOTS):
        params = SamplingParams(
            max_tokens=rng.randrange(1, 4),
            temperature=rng.choice([0.0, 0.7, 1.0, 2.0]) if needs.sampling else 0.0,
            seed=rng.getrandbits(63),
            top_k=rng.choice([0, 40]) if needs.truncation else 0,
            min_p=rng.choice([0.0, 0.05]) if needs.min_p else 0.0,
            frequency_penalty=0.5 if needs.penalties else 0.0,
            min_tokens=rng.choice([0, 2]) if needs.min_tokens else 0,
            end_ids=(1, 2),
            logit_bias=((rng.randrange(WIDTH), 3.5),) if needs.bias else (),
        )
        prompt = np.array([rng.randrange(WIDTH) for _ in range(rng.randrange(1, 20))], dtype=np.int32)
        newcomers[slot] = Sequence(slot, params, prompt.size, prompt.size + params.max_tokens, prompt)
    columns.admit(newcomers)


def rows_of(seed: int, count: int) -> torch.Tensor:
    slots = random.Random(seed).sample(range(SLOTS), count)
    return torch.tensor([*slots, SLOTS, SLOTS], device="cuda")


def clear_rows(logits: torch.Tensor, rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """Rows whose best score is so far ahead that rounding cannot change it; all on the host."""
    temperature = columns.temperature[rows].double().unsqueeze(1)
    noise = exponential_noise(columns.seed[rows], columns.length[rows], WIDTH).double()
    best, second = (logits.double() - temperature * noise.log()).topk(2, dim=1).values.T
    return torch.gt(best - second, 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("needs", [Needs(), DRAWS, dataclasses.replace(EVERYTHING, min_p=False), EVERYTHING])
def test_a_gpu_draws_what_the_reference_draws(needs: Needs) -> None:
    for seed in range(3):
        here, there = (columns_of(seed, torch.device(name), needs) for name in ("cpu", "cuda"))
        rows = rows_of(seed, SLOTS)
        logits = random_logits(seed, len(rows), WIDTH)
        clear = clear_rows(logits, rows.cpu(), here)
        expected = sample(logits, rows.cpu(), here, needs)
        found = sample(logits.cuda(), rows, there, needs).to_host()
        torch.cuda.synchronize()
        same = found.tokens_RW[:, 0] == expected.tokens_RW[:, 0]
        if needs in {Needs(), DRAWS}:
            assert same[clear].all()
        assert same.sum() >= len(rows) - 2
        for name in STATE:
            alike = getattr(there, name).cpu() == getattr(here, name)
            assert alike[rows.cpu()][same].all(), name


@pytest.mark.gpu
@pytest.mark.parametrize("needs", [Needs(), DRAWS, dataclasses.replace(EVERYTHING, truncation=False), EVERYTHING])
def test_a_captured_step_is_replayed_with_other_rows_logits_and_requests(needs: Needs) -> None:
    place = torch.device("cuda")
    columns, eager = (columns_of(1, place, needs) for _ in range(2))
    rows, logits = rows_of(1, 20), random_logits(1, 22, WIDTH).cuda()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        sample(logits, rows, columns, needs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sample(logits, rows, columns, needs)
    for seed in range(2, 6):
        for one in (columns, eager):
            admit_random(one, seed, needs)
        for step in range(3):
            rows.copy_(rows_of(seed + step, 20))
            logits.copy_(random_logits(seed * 10 + step, 22, WIDTH).cuda())
            graph.replay()
            expected = sample(logits, rows, eager, needs)
            assert captured.pairs is not None and expected.pairs is not None
            assert torch.equal(captured.pairs, expected.pairs)
            for name in STATE:
                assert torch.equal(getattr(columns, name), getattr(eager, name)), name


@pytest.mark.gpu
def test_no_part_of_a_step_waits_for_the_gpu() -> None:
    columns = columns_of(1, torch.device("cuda"), EVERYTHING)
    rows, logits = rows_of(1, 20), random_logits(1, 22, WIDTH).cuda()
    sample(logits, rows, columns, EVERYTHING)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample(logits, rows, columns, EVERYTHING)
    finally:
        torch.cuda.set_sync_debug_mode("default")
