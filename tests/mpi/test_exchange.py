"""What a step costs in collectives and bytes, counted at the communicator of ranks under a real mpirun.

Four ranks are counted, without a model, by the test of `bench exchange`.
"""

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
from lockstep_worker.wire.messages import FinishCode
from support.data.tiny_models import save_tiny_model
from support.ranks import exchanging_ranks
from support.ranks.exchanging_ranks import NUM_EMPTY, SCRIPT
from support.ranks.mpirun import mpirun
from support.worlds.local_group import LocalGroup

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(900)]
NUM_RANKS = 2
ROW_BYTES = 8 * len(RankState._fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exchanging")
    save_tiny_model("llama", folder)
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    mpirun(NUM_RANKS, "support.ranks.exchanging_ranks", str(folder), timeout_s=800)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def steps_of(rank: dict[str, Any]) -> list[list[int]]:
    """The bytes of each step's operations, the opening allgather first."""
    steps: list[list[int]] = []
    for operation, size in rank["operations"]:
        if operation == "allgather":
            steps.append([])
        assert operation in ("allgather", "broadcast")
        steps[-1].append(size)
    return steps


def test_an_empty_step_is_one_collective_and_one_with_news_is_two(ranks: list[dict[str, Any]]) -> None:
    announced = [len(msgspec.msgpack.encode(items)) if items else 0 for items in SCRIPT]
    for rank in ranks:
        steps = steps_of(rank)
        assert steps[: len(announced)] == [[ROW_BYTES, size] if size else [ROW_BYTES] for size in announced]
        assert steps[len(announced) :] == [[ROW_BYTES]] * (len(steps) - len(announced))
    assert steps[:NUM_EMPTY] == [[ROW_BYTES]] * NUM_EMPTY


def test_a_lone_cancel_and_a_lone_shutdown_reach_every_rank(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["codes"] == {"1": FinishCode.CANCELLED, "2": FinishCode.LENGTH, "3": FinishCode.LENGTH}
        assert 0 < len(rank["tokens"]["1"]) < 20


def test_the_metrics_say_what_the_communicator_saw(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        steps = steps_of(rank)
        payloads = [step[1] for step in steps if len(step) > 1]
        found = {
            (sample.name, sample.labels["op"], sample.labels.get("outcome")): sample.value
            for family in text_string_to_metric_families(rank["metrics"])
            for sample in family.samples
            if sample.name.startswith("lockstep_collective") and sample.name.endswith("_total")
        }
        assert found["lockstep_collectives_total", "exchange", "executed"] == len(steps)
        assert found["lockstep_collectives_total", "payload", "executed"] == len(payloads)
        assert found["lockstep_collectives_total", "payload", "skipped"] == len(steps) - len(payloads)
        assert found["lockstep_collective_bytes_total", "exchange", None] == ROW_BYTES * len(steps)
        sent = sum(payloads) if number == 0 else 0
        assert found["lockstep_collective_bytes_total", "payload", None] == sent


def test_rank_0_rings_for_parked_peers_and_for_no_others(ranks: list[dict[str, Any]]) -> None:
    announced = sum(bool(items) for items in SCRIPT)
    assert 0 < ranks[0]["bells"] < announced  # some news came while all were at work
    assert ranks[1]["bells"] == 0


def test_ten_thousand_steps_of_random_traffic_and_preemption_lose_nothing_and_change_no_token(
    folder: Path, ranks: list[dict[str, Any]]
) -> None:
    """Every step of each rank also checks its plan and its block pool."""
    first, second = (rank["fuzz"] for rank in ranks)
    tokens, codes = first["tokens"], first["codes"]
    assert (tokens, codes) == (second["tokens"], second["codes"])
    assert first["steps"] == second["steps"] >= exchanging_ranks.FUZZ_STEPS
    assert first["preemptions"] > 100
    model = load_model(str(folder / "llama"), device=torch.device("cpu"), dtype="float32")
    requests = exchanging_ranks.fuzz_requests(model.vocab_size)
    assert codes.keys() == {str(request.handle) for request in requests}
    alone = LocalGroup(model, max_num_tokens=1 << 14, max_batch_size=256, overlap=False).run([requests]).tokens
    for handle, expected in alone.items():
        found = tokens.get(str(handle), [])
        assert found == (expected[: len(found)] if codes[str(handle)] == FinishCode.CANCELLED else expected)
