"""Where a loop says that it stands, step by step: what ranks are compared by when the group hangs."""

from __future__ import annotations

import itertools

import pytest
import torch

from lockstep_worker.executor.loop import Loop
from lockstep_worker.model.loader import load_model
from lockstep_worker.phase import Phase, Standing
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
def test_a_loop_only_ever_moves_on_and_passes_every_phase(
    overlap: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standing that went back would make a rank that works look stuck."""
    standings: list[Standing] = []
    enter = Loop._enter

    def note(loop: Loop, phase: Phase) -> None:
        enter(loop, phase)
        standings.append(loop.standing)

    monkeypatch.setattr(Loop, "_enter", note)
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    model = load_model(str(path), device=torch.device("cpu"), dtype="float32")
    request = NewRequest(1, [5, 6, 7, 8], SamplingParams(max_tokens=4, temperature=0.0))
    LocalGroup(model, overlap=overlap).run([[], [request], *[[]] * 12])
    assert all(one < other for one, other in itertools.pairwise(standings)), standings
    assert {standing.phase for standing in standings} == set(Phase) - {Phase.LOAD}
