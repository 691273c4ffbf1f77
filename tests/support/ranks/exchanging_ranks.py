"""Ranks that run the real loop over MPI: `python -m mpi4py -m support.ranks.exchanging_ranks FOLDER`.

Each rank holds the whole model, so that all collectives are the loop's own. They run a script, then
random traffic; each writes FOLDER/<rank>.json with what its communicator saw and what its requests got.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from prometheus_client import generate_latest

from lockstep_worker.bench.counting import CountingComm
from lockstep_worker.executor.loop import Source
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import MpiComm
from lockstep_worker.schedule.plan import Plan
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.worlds.fuzz import Inspector, Traffic, random_requests
from support.worlds.local_group import LocalGroup, Record, Script

GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
NUM_EMPTY = 6
SCRIPT: list[list[Inbound]] = [
    *[[]] * NUM_EMPTY,
    [NewRequest(1, [3, 4, 5], GREEDY), NewRequest(2, [6], GREEDY)],
    *[[]] * NUM_EMPTY,
    [Cancel(1)],
    *[[]] * NUM_EMPTY,
    [NewRequest(3, [9] * 30, SamplingParams(max_tokens=3, temperature=0.9, seed=5))],
    *[[]] * (3 * NUM_EMPTY),
    [Cancel(77)],
    *[[]] * NUM_EMPTY,
    [Shutdown()],
]
FUZZ_SEED, FUZZ_REQUESTS, FUZZ_STEPS = 7, 4800, 10_000
FUZZ_ROOM: dict[str, Any] = {"num_blocks": 12, "block_size": 8, "max_batch_size": 8, "max_num_tokens": 32}


def fuzz_requests(vocab_size: int) -> list[NewRequest]:
    return random_requests(random.Random(FUZZ_SEED), FUZZ_REQUESTS, vocab_size, 40)


def main(folder: str) -> None:
    model = load_model(f"{folder}/llama", device=torch.device("cpu"), dtype="float32")
    comm = CountingComm(MpiComm())
    group = LocalGroup(model, comm=comm)
    found = run(group, Script([list(turn) for turn in SCRIPT]))
    found |= {"operations": comm.operations[:], "bells": comm.bells}
    comm.operations.clear()
    group = LocalGroup(model, comm=comm, **FUZZ_ROOM)
    traffic = Traffic(random.Random(FUZZ_SEED), fuzz_requests(model.vocab_size), 0.1)
    found["fuzz"] = run(group, traffic, Inspector(group.scheduler, group.max_num_tokens))
    found["fuzz"] |= {
        "preemptions": group.scheduler.num_preemptions,
        "steps": sum(name == "allgather" for name, _ in comm.operations),
    }
    Path(folder, f"{comm.rank}.json").write_text(json.dumps(found))


def run(group: LocalGroup, source: Source, look: Callable[[Plan], None] = lambda plan: None) -> dict[str, Any]:
    record = group.follow(source, Record(), look)
    metrics = generate_latest(group.registry).decode()
    return {"tokens": record.tokens, "codes": record.codes, "metrics": metrics}


if __name__ == "__main__":
    main(sys.argv[1])
