"""Data replicas under a real mpirun: one step, one routing table, and a gather only where there is one to route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from lockstep_worker.executor.exchange import RankState
from lockstep_worker.model.loader import load_model
from lockstep_worker.wire.messages import FinishCode, NewRequest
from support.data.tiny_models import save_tiny_model
from support.ranks.mpirun import mpirun
from support.ranks.replica_ranks import BURST, CANCELLED, FIRST, HOT, REPEATS, SCRIPT
from support.worlds.local_group import LocalGroup

pytestmark = pytest.mark.mpi
ROW_BYTES = 8 * len(RankState._fields)
REPLICAS = 2
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicas")
    save_tiny_model("llama", folder)
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank each", "two ranks each"])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def ranks(folder: Path, width: int) -> Ranks:
    mpirun(REPLICAS * width, "support.ranks.replica_ranks", str(folder), str(width))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(REPLICAS * width)]


def owner(ranks: Ranks, width: int, handle: int) -> int:
    owners = [rank // width for rank, found in enumerate(ranks) if str(handle) in found["tokens"]]
    assert len(owners) == width, f"{handle} ran on the replicas {owners}"
    return owners[0]


def counters(rank: dict[str, Any]) -> dict[tuple[str, str | None, str | None], float]:
    return {
        (sample.name, sample.labels.get("op"), sample.labels.get("outcome")): sample.value
        for family in text_string_to_metric_families(rank["metrics"])
        for sample in family.samples
    }


def test_every_request_runs_on_one_replica_and_gets_the_tokens_that_it_gets_alone(
    folder: Path, ranks: Ranks, width: int
) -> None:
    model = load_model(str(folder / "llama"), device=torch.device("cpu"), dtype="float32")
    requests = [item for turn in SCRIPT for item in turn if isinstance(item, NewRequest) and item.handle != CANCELLED]
    alone = LocalGroup(model, overlap=False).run([[request] for request in requests]).tokens
    for request in requests:
        replica = owner(ranks, width, request.handle)
        for rank in ranks[replica * width : (replica + 1) * width]:
            assert rank["tokens"][str(request.handle)] == alone[request.handle]


def test_all_ranks_hold_one_routing_table_in_every_step(ranks: Ranks, width: int) -> None:
    checksums = [[digest for digest, _ in rank["notes"]] for rank in ranks]
    assert all(one == checksums[0] for one in checksums)
    assert len(set(checksums[0])) == sum(any(isinstance(item, NewRequest) for item in turn) for turn in SCRIPT)
    for turn in zip(*(rank["notes"] for rank in ranks[::width]), strict=True):
        kept = [handle for _, handles in turn for handle in handles]
        assert len(kept) == len(set(kept))


def test_there_is_one_gather_for_a_step_with_new_requests_and_none_for_any_other(ranks: Ranks) -> None:
    expected: list[list[Any]] = []
    for turn in SCRIPT:
        expected.append(["allgather", ROW_BYTES])
        if turn:
            expected.append(["broadcast", len(msgspec.msgpack.encode(turn))])
        if news := sum(isinstance(item, NewRequest) for item in turn):
            expected.append(["allgather", 8 * news])
    gathers = sum(any(isinstance(item, NewRequest) for item in turn) for turn in SCRIPT)
    for rank in ranks:
        assert rank["operations"][: len(expected)] == expected
        assert all(one == ["allgather", ROW_BYTES] for one in rank["operations"][len(expected) :])
        said = counters(rank)
        assert said["lockstep_collectives_total", "prefix_matches", "executed"] == gathers
        steps = said["lockstep_collectives_total", "exchange", "executed"]
        idle = steps - len(rank["notes"])  # parked: nothing to route, and nobody asks
        assert said["lockstep_collectives_total", "prefix_matches", "skipped"] == steps - idle - gathers


def test_a_repeated_prefix_goes_where_it_is_and_a_hot_one_spreads_at_its_cap(ranks: Ranks, width: int) -> None:
    holder = owner(ranks, width, FIRST)
    assert [owner(ranks, width, handle) for handle in REPEATS] == [holder, holder]
    burst = [owner(ranks, width, handle) for handle in BURST]
    assert burst.count(holder) == 6  # one and a half times its fair share of eight
    lengths = {item.handle: len(item.prompt) for turn in SCRIPT for item in turn if isinstance(item, NewRequest)}
    for number, rank in enumerate(ranks):
        on_holder = number // width == holder
        said = counters(rank)
        hits = said["lockstep_prefix_cache_hit_tokens_total", None, None]
        assert hits == (len(HOT) * (len(REPEATS) + 6) if on_holder else 0)
        asked = sum(lengths[int(handle)] for handle in rank["tokens"])
        assert said["lockstep_prefix_cache_query_tokens_total", None, None] == asked


def test_a_cancel_reaches_the_owner_wherever_it_is(ranks: Ranks, width: int) -> None:
    replica = owner(ranks, width, CANCELLED)
    for number, rank in enumerate(ranks):
        if number // width == replica:
            assert rank["codes"][str(CANCELLED)] == FinishCode.CANCELLED
            assert 0 < len(rank["tokens"][str(CANCELLED)]) < 200
        else:
            assert str(CANCELLED) not in rank["codes"]
