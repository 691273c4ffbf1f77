"""Tensor-parallel ranks with drafts, alike or not: `python -m mpi4py -m support.ranks.drafting_ranks FOLDER RIGHT...`.

Each rank proposes as many tokens as the others, from what FOLDER/known.json says, and is right as often as its own
RIGHT says. Each writes FOLDER/<rank>.json with its tokens, or the error that ended it.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch

from lockstep_worker.errors import RankDiverged
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import MpiComm
from lockstep_worker.parallel.groups import form_groups, leave_groups
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.worlds.drafter import Drafter
from support.worlds.local_group import LocalGroup, Record, Script

REQUESTS = [
    NewRequest(
        handle, [handle + 3] * (handle % 5 + 1), SamplingParams(max_tokens=24, temperature=handle % 2, seed=handle)
    )
    for handle in range(1, 9)
]
SCRIPT: list[list[Inbound]] = [[*REQUESTS], *[[]] * 40, [Shutdown()]]


def main(folder: str, right: list[float]) -> None:
    comm, cpu = MpiComm(), torch.device("cpu")
    topology = form_groups(comm, Topology.of(comm.rank, tensor=comm.size), cpu)
    model = load_model(f"{folder}/llama", device=cpu, dtype="float32", topology=topology)
    known = {int(handle): tokens for handle, tokens in json.loads(Path(folder, "known.json").read_text()).items()}
    group = LocalGroup(model, comm=comm, topology=topology, max_drafts=3)
    drafter = Drafter(random.Random(5), known, right[comm.rank]).attach(group.scheduler)
    record = Record()
    found: dict[str, object]
    try:
        group.follow(Script([list(turn) for turn in SCRIPT]), record)
        found = {"tokens": record.tokens, "drafted": drafter.drafted_rows}
        leave_groups()
    except RankDiverged as error:
        found = {"error": str(error)}
    Path(folder, f"{comm.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], [float(share) for share in sys.argv[2:]])
