"""Where a loop says that it stands, step by step: what ranks are compared by when the group hangs."""

from __future__ import annotations

import itertools

import pytest
import torch

from lockstep_worker.executor.loop import Loop
from lockstep_worker.model.loader import load_model
from lockstep_worker.phase import Phase, Position
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
def test_a_loop_only_ever_moves_on_and_passes_every_phase(
    overlap: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position that went back would make a rank that works look stuck."""
    positions: list[Position] = []
    enter = Loop._enter

    def note(loop: Loop, phase: Phase) -> None:
        enter(loop, phase)
        positions.append(loop.position)

    monkeypatch.setattr(Loop, "_enter", note)
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    model = load_model(str(path), device=torch.device("cpu"), dtype="float32")
    request = NewRequest(1, [5, 6, 7, 8], SamplingParams(max_tokens=4, temperature=0.0))
    LocalGroup(model, overlap=overlap).run([[], [request], *[[]] * 12])
    assert all(one < other for one, other in itertools.pairwise(positions)), positions
    assert {position.phase for position in positions} == set(Phase) - {Phase.LOAD}
