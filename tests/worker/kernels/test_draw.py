"""The draw's kernels against float64, one tile size against another, and their draws against the softmax."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from lockstep_worker.kernels.draw import DrawInput, draw_reference, draw_tiles, pick, score
from lockstep_worker.kernels.noise import exponential
from lockstep_worker.sampling.sampler import exponential_noise
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # inf - inf, as on a GPU
INF = float("inf")
TEMPERATURES = [0.0, 1e-6, 0.7, 1.0, 5.0, 100.0, 3e38]


def draw(
    logits: torch.Tensor, temperatures: list[float], tile: int | None = None, rows: list[int] | None = None
) -> list[int]:
    """Draw for rows that are slots of their own, with seeds and lengths by slot."""
    device = logits.device
    slots = torch.arange(len(logits)) if rows is None else torch.tensor(rows)
    seeds, lengths = keys(max(len(temperatures), 1), device)
    tables = torch.tensor(temperatures, device=device)
    return pick(draw_tiles(logits, DrawInput(slots.to(device), seeds, lengths, tables), None, tile)).tolist()


def keys(count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Seeds and lengths in one table, as the columns have them."""
    table = torch.zeros((count, 5), dtype=torch.int64)
    table[:, 1] = torch.arange(count) * 0x5851F42D4C957F2D & (1 << 63) - 1
    table[:, 3] = torch.arange(count) % 7 + 1
    table = table.to(device)
    return table[:, 1], table[:, 3]


def random_logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def reference(logits: torch.Tensor, temperatures: list[float]) -> list[int]:
    noise = exponential_noise(*keys(len(logits), torch.device("cpu")), logits.shape[1])
    return draw_reference(logits, torch.tensor(temperatures), noise).tolist()


# --- noise ------------------------------------------------------------------------------------------------------------
def write_exponential(bits: tl.tensor, out: tl.tensor, SIZE: tl.constexpr) -> None:
    at = tl.arange(0, SIZE)
    tl.store(out + at, exponential(tl.load(bits + at).to(tl.uint32)))


exponential_kernel = triton.jit(write_exponential)


def check_noise(device: torch.device) -> None:
    top, seam = 1 << 32, 1 << 29
    edges = [*range(1024), *range(seam - 1024, seam + 1024), *range(top - 1024, top)]
    powers = [1 << exponent for exponent in range(10, 32)]
    rng = np.random.default_rng(1)
    bits = np.array([*edges, *powers, *rng.integers(0, top, 8192 - len(edges) - len(powers))], dtype=np.int64)
    out = torch.empty(bits.size, device=device)
    exponential_kernel[(1,)](torch.from_numpy(bits).to(device), out, SIZE=bits.size)
    expected = -np.log1p(-(bits + 0.5) * 2.0**-32)
    error = np.abs(out.cpu().double().numpy() - expected) / expected
    assert out.min() > 0
    assert error[:1024].max() < 2e-7, "near 0"
    assert error[len(edges) - 1024 : len(edges)].max() < 2e-7, "near 1"
    assert error.max() < 2e-6


def test_the_noise_is_that_of_float64_to_two_millionths_near_0_and_near_1_too() -> None:
    check_noise(torch.device("cpu"))


@pytest.mark.gpu
def test_the_noise_is_that_of_float64_on_a_gpu() -> None:
    check_noise(torch.device("cuda"))


# --- one draw ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [1, 64, 200])
def test_a_draw_is_that_of_float64_at_every_temperature(width: int) -> None:
    temperatures = TEMPERATURES * 3
    logits = random_logits(width, len(temperatures), width)
    assert draw(logits, temperatures, tile=64) == reference(logits, temperatures)


def test_a_draw_does_not_depend_on_the_tile_the_batch_the_stride_or_the_place() -> None:
    logits = random_logits(2, 5, 300).round()  # many ties, which a tiny temperature must break alike everywhere
    temperatures = [1e-6, 1e-7, 0.5, 0.0, 5.0]
    expected = draw(logits, temperatures, tile=512)
    assert expected == reference(logits, temperatures)
    assert draw(logits, temperatures, tile=32) == expected
    wide = torch.full((5, 400), INF)
    wide[:, :300] = logits
    assert draw(wide[:, :300], temperatures, tile=128) == expected
    alone = [draw(logits[slot : slot + 1], temperatures, tile=128, rows=[slot])[0] for slot in range(5)]
    assert alone == expected
    order = [3, 3, 0, 4, 1, 2]
    assert draw(logits[order], temperatures, rows=order) == [expected[slot] for slot in order]


def test_equal_logits_are_drawn_alike_at_a_temperature_too_small_to_change_their_float32() -> None:
    logits = torch.full((60, 4), 20.0)
    logits[:, 2] = 19.0
    counts = np.bincount(draw(logits, [1e-9] * 60, tile=4), minlength=4)
    assert counts[2] == 0
    assert min(counts[0], counts[1], counts[3]) > 8


def test_temperature_zero_takes_the_best_and_the_lowest_id_on_ties() -> None:
    logits = torch.zeros(3, 100)
    logits[0, [7, 8, 90]] = 2.0
    logits[1, 99] = 1.0
    assert draw(logits, [0.0] * 3, tile=16) == [7, 99, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1.0, 3e38])
def test_banned_entries_and_those_that_are_no_number_are_never_drawn(temperature: float) -> None:
    nan = float("nan")
    logits = torch.full((6, 40), -INF)
    logits[0, 33] = -3e38
    logits[1, [5, 9]] = torch.tensor([nan, 1.0])
    logits[2, [20, 30]] = INF
    logits[3] = nan
    logits[4, 39] = 0.0
    logits[5, 2] = 3e38
    assert draw(logits, [temperature] * 6, tile=16) == [33, 9, 20, 0, 39, 2]


def test_a_row_without_any_entry_draws_id_zero() -> None:
    assert draw(torch.full((3, 70), -INF), [0.0, 1.0, 100.0], tile=32) == [0, 0, 0]


def test_the_offset_counts_to_the_index() -> None:
    logits = torch.zeros(4, 64)
    seeds, lengths = keys(1, logits.device)
    slots, offsets = torch.zeros(4, dtype=torch.int64), torch.arange(4)
    found = pick(draw_tiles(logits, DrawInput(slots, seeds, lengths, torch.ones(1)), offsets, 64))
    noise = exponential_noise(seeds.expand(4), lengths + offsets, 64)
    assert found.tolist() == draw_reference(logits, torch.ones(4), noise).tolist()
    assert len(set(found.tolist())) > 1


def test_bfloat16_logits_are_drawn_from_as_their_float32() -> None:
    logits = random_logits(3, 2, 50).bfloat16()
    assert draw(logits, [0.0, 1.0]) == draw(logits.float(), [0.0, 1.0])


# --- distribution -----------------------------------------------------------------------------------------------------
def write_scores(
    logits: tl.tensor,
    temperature: tl.tensor,
    highs: tl.tensor,
    lows: tl.tensor,
    width: tl.tensor,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """The scores of many short rows in one program; a row's seed is its number."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    columns = tl.arange(0, WIDTH)[None, :]
    logit = tl.broadcast_to(tl.load(logits + columns), [ROWS, WIDTH])
    high, low = score(logit, temperature, rows, rows * 0 + 9, columns)
    tl.store(highs + rows * width + columns, high)
    tl.store(lows + rows * width + columns, low)


scores_kernel = triton.jit(write_scores)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_twenty_thousand_draws_follow_the_softmax(temperature: float) -> None:
    count, width, block = 20_480, 16, 4096
    logits = random_logits(9, width) / 4
    highs, lows = torch.empty(count, width), torch.empty(count, width)
    scores_kernel[(count // block,)](logits, temperature, highs, lows, width, ROWS=block, WIDTH=width)
    drawn = (highs.double() + lows.double()).argmax(dim=1).numpy()
    expected = (logits.double() / temperature).softmax(0).numpy() * count
    assert expected.min() > 5
    chi_square = ((np.bincount(drawn, minlength=width) - expected) ** 2 / expected).sum()
    assert chi_square < 44.3  # 15 degrees of freedom: p < 1e-4


# --- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 60])
def test_a_draw_on_a_gpu_is_that_of_float64(rows: int) -> None:
    temperatures = (TEMPERATURES * 10)[:rows]
    logits = random_logits(rows, rows, 151_936)
    found = draw(logits.cuda(), temperatures)
    noise = exponential_noise(*keys(rows, torch.device("cpu")), logits.shape[1])
    scores = logits.double() - torch.tensor(temperatures).double()[:, None] * noise.double().log()
    best, second = scores.topk(2, dim=1).values.T
    clear = best - second > 1e-4 * torch.tensor(temperatures).clamp(min=1)
    assert clear.sum() > 0.9 * rows
    assert torch.equal(torch.tensor(found)[clear], scores.argmax(dim=1)[clear])
    for tile in (256, 2048):
        assert draw(logits.cuda(), temperatures, tile) == found


# --- offline ----------------------------------------------------------------------------------------------------------
TYPES = {
    "logits_stride": "i64",
    **dict.fromkeys(("slots", "offsets", "seeds", "lengths"), "*i64"),
    **dict.fromkeys(("temperatures", "highs", "lows"), "*fp32"),
    **dict.fromkeys(("integers_stride", "floats_stride", "width"), "i32"),
    "ids": "*i32",
}


def float_operations(ptx: str) -> Counter[str]:
    """How often each is there; `.rn` only tells the assembler what the flag told the compiler."""
    return Counter(name.replace(".rn", "") for name in re.findall(r"(?:fma|mul|add|sub)\.\S*f32", ptx))


def test_the_tiles_kernel_compiles_and_nothing_is_left_in_it_to_be_fused() -> None:
    kernel = "lockstep_worker.kernels.draw:_draw_tiles_kernel"
    plain = {name: kind for name, kind in TYPES.items() if name != "offsets"}
    constants, both = {"TILE": 4096, "offsets": None}, (HOPPER, BLACKWELL)
    wide = Specialisation(kernel, {"logits": "*bf16", **plain}, constants, 8, capabilities=both)
    narrow = Specialisation(kernel, {"logits": "*fp32", **TYPES}, {"TILE": 1024})
    exact = replace(narrow, options={"enable_fp_fusion": False})
    _, [fused], [unfused] = compile_offline(wide, narrow, exact)
    assert float_operations(fused.ptx) == float_operations(unfused.ptx)
    assert float_operations(fused.ptx)["fma.f32"] == 8 * 8, "seven terms of the series and the shift, of 8 entries"
