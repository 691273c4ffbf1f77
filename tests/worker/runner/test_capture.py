"""Decodes of every family as captured programs: they bring the tokens of eager runs, or eager runs serve the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.runner.capture import Capture, CudaCapture, Program, WaitsForDeviceError
from lockstep_worker.wire.messages import NewRequest
from lockstep_worker.wire.params import SamplingParams
from support.data.tiny_models import CONFIGS, save_tiny_model
from support.worlds.local_group import LocalGroup, run_again

HEAD_DIM = 16
"""The smallest that the attention of captured programs takes."""
REQUESTS = [
    NewRequest(1, list(range(20, 37)), SamplingParams(max_tokens=9, temperature=0.0)),  # beyond every window
    NewRequest(2, [50, 60, 70], SamplingParams(max_tokens=5, temperature=0.8, seed=3)),
]
"""Drawn and greedy rows in the bucket of two, and then the greedy one in that of one."""
WITH_EXPERTS = ("gpt_oss", "qwen3_moe")
"""Transformers may ask the device which are chosen, and in float32 does what it never does in bfloat16."""
FAST = ("llama", "qwen2", "qwen3", "qwen3-window", "mistral-window")
ON_A_GPU = [
    *((family, "generic", "float32") for family in CONFIGS),
    *((family, "generic", "bfloat16") for family in WITH_EXPERTS),
    *((family, "fast", "float32") for family in FAST),
]


class Noted:
    """A `Capture` by another one; counts what was captured and what was found to wait for the device."""

    def __init__(self, capture: Capture) -> None:
        self.captured = self.refused = 0
        self._capture = capture

    def __call__(self, program: Program) -> Program:
        try:
            replay = self._capture(program)
        except WaitsForDeviceError:
            self.refused += 1
            raise
        self.captured += 1
        return replay


def load(family: str, folder: Path, device: str = "cpu", dtype: str = "float32", *, fast_path: bool = False) -> Model:
    path = save_tiny_model(family, folder, head_dim=HEAD_DIM)
    return load_model(str(path), device=torch.device(device), dtype=dtype, fast_path=fast_path)


def check_decodes(model: Model, capture: Capture, *, may_wait: bool) -> None:
    """Run the requests eager, and again with captured decodes; what refuses its capture must be served all the same."""
    expected = LocalGroup(model, max_batch_size=2, num_blocks=64).run([REQUESTS])
    group = LocalGroup(model, max_batch_size=2, num_blocks=64, capture=(noted := Noted(capture)))
    found = group.run([REQUESTS])
    assert found.tokens == expected.tokens
    assert found.codes == expected.codes
    assert {handle: len(tokens) for handle, tokens in found.tokens.items()} == {1: 9, 2: 5}
    if noted.refused:
        assert may_wait, "its forward waits for the device"
        assert noted.captured == 0
        assert set(group.eager) == {"prefill", "uncaptured"}
    else:
        assert noted.captured >= 2
        assert set(group.eager) == {"prefill", ""}


@pytest.mark.parametrize("family", CONFIGS)
def test_replays_of_every_family_bring_the_tokens_of_eager_runs(family: str, tmp_path: Path) -> None:
    check_decodes(load(family, tmp_path), run_again, may_wait=False)


def test_a_family_that_waits_for_the_device_is_served_eager(tmp_path: Path) -> None:
    def refuse(program: Program) -> Program:
        program()
        raise WaitsForDeviceError("it waits for the device")

    check_decodes(load("qwen3_moe", tmp_path), refuse, may_wait=True)


@pytest.mark.gpu
@pytest.mark.parametrize(("family", "path", "dtype"), ON_A_GPU)
def test_a_gpu_captures_every_family_or_serves_it_eager(family: str, path: str, dtype: str, tmp_path: Path) -> None:
    model = load(family, tmp_path, "cuda", dtype, fast_path=path == "fast")
    model.create_cache(1, 16)
    assert (model.path, model.attention_name, model.is_replayable) == (path, "paged", True)
    check_decodes(model, CudaCapture(), may_wait=family in WITH_EXPERTS)
