"""Data replicas that run the real loop over MPI.

`python -m mpi4py -m support.ranks.replica_ranks FOLDER TENSOR_PARALLEL`

Each rank writes FOLDER/<rank>.json with what its communicator saw, what its requests got, and where it sent whom.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from prometheus_client import generate_latest

from lockstep_worker.bench.counting import CountingComm
from lockstep_worker.executor.exchange import Exchanged
from lockstep_worker.executor.routing import Router
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import MpiComm
from lockstep_worker.parallel.groups import form_groups, leave_groups
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Cancel, Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.worlds.local_group import LocalGroup, Record, Script

QUIET: list[list[Inbound]] = [[]] * 12
LONG, SHORT = SamplingParams(max_tokens=200, temperature=0.0), SamplingParams(max_tokens=4, temperature=0.0)
HOT = [7, 8, 9, 10] * 16
"""Four blocks."""
FIRST, CANCELLED, REPEATS, BURST = 1, 2, (3, 4), range(10, 18)
SCRIPT: list[list[Inbound]] = [
    *QUIET,
    [NewRequest(FIRST, [*HOT, 5], SHORT)],
    *QUIET,
    [NewRequest(CANCELLED, [3, 4, 5], LONG)],
    *QUIET,
    [Cancel(CANCELLED)],
    *QUIET,
    [NewRequest(REPEATS[0], [*HOT, 6], SHORT)],
    *QUIET,
    [NewRequest(REPEATS[1], [*HOT, 11], SHORT), Cancel(999)],
    *QUIET,
    [NewRequest(handle, [*HOT, handle], SHORT) for handle in BURST],
    *QUIET,
    [NewRequest(handle, [handle - 19] * (handle % 9 + 1), SHORT) for handle in range(20, 40)],
    *QUIET,
    [Shutdown()],
]


def watch(router: Router) -> list[tuple[int, list[int]]]:
    """Note after every step which new requests stayed here, and the router's checksum."""
    notes: list[tuple[int, list[int]]] = []
    mine = router.mine

    def noting(exchanged: Exchanged) -> list[Inbound]:
        kept = mine(exchanged)
        notes.append((router.digest, [item.handle for item in kept if isinstance(item, NewRequest)]))
        return kept

    router.mine = noting  # type: ignore[method-assign]
    return notes


def main(folder: str, width: int) -> None:
    comm, cpu = CountingComm(MpiComm()), torch.device("cpu")
    topology = form_groups(comm, Topology.of(comm.rank, data=comm.size // width, tensor=width), cpu)
    model = load_model(f"{folder}/llama", device=cpu, dtype="float32", topology=topology)
    comm.operations.clear()
    group = LocalGroup(model, comm=comm, topology=topology)
    notes = watch(group.router)
    record = group.follow(Script([list(turn) for turn in SCRIPT]), Record())
    found = {
        "operations": comm.operations,
        "tokens": record.tokens,
        "codes": record.codes,
        "notes": notes,
        "metrics": generate_latest(group.registry).decode(),
    }
    Path(folder, f"{comm.rank}.json").write_text(json.dumps(found))
    leave_groups()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
