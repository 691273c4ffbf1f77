"""A rank without work takes part in its peers' forwards where they have collectives in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lockstep_worker.model.loader import load_model
from support.data.tiny_models import save_tiny_model
from support.ranks.mpirun import mpirun
from support.ranks.together_ranks import CROWD, GREEDY, LONE
from support.worlds.local_group import LocalGroup

pytestmark = pytest.mark.mpi
RANKS = 2


def test_a_request_on_one_replica_runs_with_the_other_in_every_forward(tmp_path: Path) -> None:
    path = save_tiny_model("llama", tmp_path)
    mpirun(RANKS, "support.ranks.together_ranks", str(tmp_path), timeout_s=120)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert [str(LONE.handle) in rank["tokens"] for rank in ranks].count(True) == 1
    assert ranks[0]["present"] == ranks[1]["present"] == [RANKS] * len(ranks[0]["present"])
    assert len(ranks[0]["present"]) > GREEDY.max_tokens
    alone = LocalGroup(load_model(str(path), device=torch.device("cpu"), dtype="float32"))
    requests = [LONE, *CROWD]
    expected = alone.generate([one.prompt for one in requests], GREEDY)
    found = {int(handle): tokens for rank in ranks for handle, tokens in rank["tokens"].items()}
    assert [found[one.handle] for one in requests] == expected
