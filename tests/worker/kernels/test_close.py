"""The kernel that closes a step against its reference, over random tables."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from lockstep_worker.kernels.close import Closed, StepCodes, StepTables, close_step, close_step_reference
from lockstep_worker.kernels.draw import Candidates, pick
from support.kernels.offline import BLACKWELL, HOPPER, Specialisation, compile_offline

CODES = StepCodes(end_id=1, length=2, stop_words=3)
SLOTS, IDS, VOCAB = 40, 4, 9  # few tokens, so that ids that end a row are drawn often


def random_tables(rng: random.Random) -> StepTables:
    """Views of one table, as the columns are; the last slot ended long ago."""
    table = torch.tensor([[rng.randrange(-1, VOCAB) for _ in range(3 + 2 * IDS)] for _ in range(SLOTS)])
    table[:, 1] = torch.tensor([rng.randrange(1, 30) for _ in range(SLOTS)])
    table[:, 2] = table[:, 1] + torch.tensor([rng.randrange(1, 4) for _ in range(SLOTS)])
    finished = torch.tensor([rng.choice([0, 0, 0, 1, 2, 3, 4]) for _ in range(SLOTS - 1)] + [1], dtype=torch.uint8)
    last_token, length, limit = table[:, :3].unbind(1)
    return StepTables(finished, last_token, length, limit, table[:, 3 : 3 + IDS], table[:, 3 + IDS :])


def random_candidates(rng: random.Random, rows: int, tiles: int, *, plain: bool = False) -> Candidates:
    """Scores with many ties, first of the sum and then of what it lost; ids grow with the tiles."""
    highs, lows = (torch.randint(-2, 3, (rows, tiles), generator=generator_of(rng)).float() for _ in range(2))
    ids = torch.tensor([[tile % VOCAB for tile in range(tiles)]] * rows, dtype=torch.int32)
    return Candidates(highs, None if plain else lows, ids)


def generator_of(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(32))


def pick_one_by_one(candidates: Candidates) -> torch.Tensor:
    lows = torch.zeros_like(candidates.highs_nB) if candidates.lows_nB is None else candidates.lows_nB
    every = zip(candidates.highs_nB.tolist(), lows.tolist(), candidates.ids_nB.tolist(), strict=True)
    return torch.tensor([-max(zip(high, low, [-i for i in ids], strict=True))[2] for high, low, ids in every])


def copy(tables: StepTables, device: torch.device) -> StepTables:
    """The same tables elsewhere; the integers stay views of one table."""
    whole = torch.cat([tables.last_token[:, None], tables.length[:, None], tables.limit[:, None]], dim=1)
    whole = torch.cat([whole, tables.end_ids, tables.stop_token_ids], dim=1).to(device)
    views = (*whole[:, :3].unbind(1), whole[:, 3 : 3 + IDS], whole[:, 3 + IDS :])
    return StepTables(tables.finished.clone().to(device), *views)


def check(seed: int, device: torch.device, tiles: int, *, plain: bool = False) -> set[int]:
    rng = random.Random(seed)
    tables = random_tables(rng)
    rows = torch.tensor([*rng.sample(range(SLOTS - 1), 20), SLOTS - 1, SLOTS - 1, SLOTS - 1])
    candidates = random_candidates(rng, len(rows), tiles, plain=plain)
    found_tables = copy(tables, device)
    lows = None if candidates.lows_nB is None else candidates.lows_nB.to(device)
    there = Candidates(candidates.highs_nB.to(device), lows, candidates.ids_nB.to(device))
    found = close_step(there, rows.to(device), found_tables, CODES)
    tokens = pick_one_by_one(candidates)
    assert pick(there).tolist() == tokens.tolist()
    expected = close_step_reference(tokens, rows, tables, CODES)
    for one in dataclasses.fields(Closed):
        assert_same(getattr(found, one.name), getattr(expected, one.name), one.name)
    for one in dataclasses.fields(StepTables):
        assert_same(getattr(found_tables, one.name), getattr(tables, one.name), one.name)
    return set(found.codes.tolist())


def assert_same(found: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    assert found.dtype == expected.dtype, name
    assert torch.equal(found.cpu(), expected), name


@pytest.mark.parametrize("plain", [False, True], ids=["two parts", "one part"])
@pytest.mark.parametrize("tiles", [1, 5, 8])
def test_a_step_is_closed_as_the_reference_closes_it(tiles: int, plain: bool) -> None:
    codes = {code for seed in range(4) for code in check(seed, torch.device("cpu"), tiles, plain=plain)}
    assert codes == {0, 1, 2, 3, 4}


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", [1, 5, 149])
def test_a_step_is_closed_on_a_gpu_as_the_reference_closes_it(tiles: int) -> None:
    for seed in range(20):
        check(seed, torch.device("cuda"), tiles, plain=seed % 2 == 0)


def test_the_kernel_compiles() -> None:
    types = dict.fromkeys(("last_token", "length", "limit", "end_ids", "stop_token_ids", "rows", "tokens"), "*i64")
    types |= {"highs": "*fp32", "lows": "*fp32", "ids": "*i32", "tiles": "i32", "stride": "i32"}
    types |= {"finished": "*u8", "codes": "*u8", "pairs": "*i32"}
    constants = {"WIDTH": 256, "IDS": 16, "END_ID": 1, "LENGTH": 2, "STOP_WORDS": 3}
    close = "lockstep_worker.kernels.close:_close_step_kernel"
    pick_types = {"highs": "*fp32", "lows": "*fp32", "ids": "*i32", "tokens": "*i64", "tiles": "i32"}
    compile_offline(
        Specialisation(close, types, constants, num_warps=1, capabilities=(HOPPER, BLACKWELL)),
        Specialisation("lockstep_worker.kernels.draw:_pick_kernel", pick_types, {"WIDTH": 256}, num_warps=1),
    )
