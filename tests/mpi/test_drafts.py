"""Drafts on ranks that share a model: alike they change no token, and where they differ the ranks notice at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep_worker.model.loader import load_model
from support.data.tiny_models import save_tiny_model
from support.ranks.drafting_ranks import REQUESTS
from support.ranks.mpirun import mpirun
from support.worlds.local_group import LocalGroup

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    model = load_model(str(save_tiny_model("llama", folder)), device=torch.device("cpu"), dtype="float32")
    plain = LocalGroup(model).run([[*REQUESTS]])
    (folder / "known.json").write_text(json.dumps(plain.tokens))
    return folder


def run(folder: Path, *right: float) -> list[dict[str, Any]]:
    mpirun(len(right), "support.ranks.drafting_ranks", str(folder), *map(str, right), timeout_s=120)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(right))]


def test_equal_drafts_on_two_ranks_change_no_token(folder: Path) -> None:
    known = json.loads((folder / "known.json").read_text())
    for rank in run(folder, 0.8, 0.8):
        assert rank["tokens"] == known
        assert rank["drafted"] > 10


def test_other_drafts_on_another_rank_are_noticed_before_a_wrong_answer(folder: Path) -> None:
    for rank in run(folder, 0.8, 0.5):
        assert "ranks disagree on digest" in rank["error"]
