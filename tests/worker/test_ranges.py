"""Ranges around a step's parts, as a tool sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from lockstep_worker import ranges
from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.ranges import ProfilerTool
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import save_tiny_model
from support.worlds.local_group import LocalGroup


class Noting:
    """Keeps each range's names from the outermost on, when it begins."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def push(self, name: str) -> None:
        self.open.append(name)
        self.seen["/".join(self.open)] += 1

    def pop(self) -> None:
        self.open.pop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


@pytest.fixture
def tool() -> Iterator[Noting]:
    noting = Noting()
    ranges.turn_on(noting)
    yield noting
    ranges.turn_off()


def test_a_step_draws_its_parts_behind_one_another_and_sampling_within_the_forward(model: Model, tool: Noting) -> None:
    LocalGroup(model).run([[NewRequest(1, [5, 6, 7], SamplingParams(max_tokens=4, temperature=0))]])
    for name in ("forward", "forward/sample", "collect", "update"):
        assert tool.seen[name] == 4, name
    assert {name for name in tool.seen if "/" in name} == {"forward/sample"}
    assert {"fetch", "gather", "route", "schedule", "publish"} < tool.seen.keys()
    ranges.turn_off()
    assert tool.open == []


def test_ranges_that_are_off_are_drawn_by_nobody(tool: Noting) -> None:
    ranges.turn_off()
    ranges.move("fetch")
    with ranges.span("sample"):
        pass
    assert not tool.seen


def test_torchs_profiler_sees_the_ranges() -> None:
    from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

    with profile(activities=[ProfilerActivity.CPU]) as found:
        ranges.turn_on(ProfilerTool())
        ranges.move("forward")
        with ranges.span("sample"):
            pass
        ranges.move("update")
        ranges.turn_off()
    assert {event.name for event in found.events()} >= {"forward", "sample", "update"}
