"""Data replicas whose forwards have a collective in common, as experts do.

`python -m mpi4py -m support.ranks.together_ranks FOLDER`
Each layer's last projection is followed by an all-reduce over all ranks of the group. Each rank writes
FOLDER/<rank>.json with the tokens of its requests and how many forwards it took part in.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import MpiComm
from lockstep_worker.parallel.groups import form_groups, leave_groups
from lockstep_worker.parallel.topology import Topology
from lockstep_worker.wire.messages import Inbound, NewRequest, Shutdown
from lockstep_worker.wire.params import SamplingParams
from support.worlds.local_group import LocalGroup, Record, Script

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
LONE = NewRequest(1, [3, 4, 5], GREEDY)
"""Runs on one replica while the other has nothing."""
CROWD = [NewRequest(handle, [handle] * (handle % 7 + 1), GREEDY) for handle in range(2, 9)]
SCRIPT: list[list[Inbound]] = [[], [LONE], *[[]] * 20, [*CROWD], *[[]] * 20, [Shutdown()]]


def main(folder: str) -> None:
    comm, cpu = MpiComm(), torch.device("cpu")
    topology = form_groups(comm, Topology.of(comm.rank, data=comm.size, expert=comm.size), cpu)
    model = load_model(f"{folder}/llama", device=cpu, dtype="float32")
    present: list[int] = []

    def meet(module: nn.Module, args: tuple[object, ...], output: torch.Tensor) -> None:
        here = torch.ones(1)
        dist.all_reduce(here, group=topology.expert.group)
        present.append(int(here))

    model._network.model.layers[0].mlp.register_forward_hook(meet)
    record = LocalGroup(model, comm=comm, topology=topology).follow(Script([list(turn) for turn in SCRIPT]), Record())
    Path(folder, f"{comm.rank}.json").write_text(json.dumps({"tokens": record.tokens, "present": present}))
    leave_groups()


if __name__ == "__main__":
    main(sys.argv[1])
