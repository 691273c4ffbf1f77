"""One rank of a tensor-parallel group, started by mpirun: `python -m mpi4py -m support.ranks.tp_ranks JOB`.

JOB is a JSON file: `models` (folders) and `prompts` (token ids); each rank writes JOB.<rank> with what it got.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from lockstep_worker.errors import UnsupportedModel
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.parallel.comm import MpiComm
from lockstep_worker.parallel.groups import form_groups, leave_groups
from lockstep_worker.parallel.topology import Topology
from support.worlds.greedy import GreedyDriver, pack

LIMIT = 16


def observe(model: Model, prompts: list[list[int]]) -> dict[str, Any]:
    """Run one model: logits of the first prompt, tokens of all."""
    driver = GreedyDriver(model, chunk=5)
    sequence = driver.start(prompts[0], 1)
    sequence.blocks += driver.pool.allocate(-(-len(prompts[0]) // driver.pool.block_size))
    logits = model.forward(pack([sequence], [len(prompts[0])], driver.pool.block_size, model.device))
    driver.pool.release(sequence.blocks)
    return {
        "logits": logits[0].tolist(),
        "tokens": driver.run(prompts, LIMIT),
        "kv_heads": model.kv_heads_local,
        "weights": sum(parameter.numel() for parameter in model._network.parameters()),
    }


def main(job_file: str) -> None:
    comm, cpu = MpiComm(), torch.device("cpu")
    job = json.loads(Path(job_file).read_text())
    topology = form_groups(comm, Topology.of(comm.rank, tensor=comm.size), cpu)
    results: dict[str, Any] = {}
    for path in job["models"]:
        try:
            model = load_model(path, device=cpu, dtype="float32", topology=topology)
            results[path] = observe(model, job["prompts"])
        except UnsupportedModel as error:
            results[path] = {"refused": str(error)}
    Path(f"{job_file}.{comm.rank}").write_text(json.dumps(results))
    leave_groups()


if __name__ == "__main__":
    main(sys.argv[1])
