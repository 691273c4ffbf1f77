"""On a GPU in bfloat16 the small model gives transformers' greedy tokens, in whatever form its steps are run."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.runner.capture import CudaCapture
from lockstep_worker.wire.params import SamplingParams
from models.recall import tasks
from support.data import recall_model
from support.worlds.local_group import LocalGroup

pytestmark = pytest.mark.gpu
KINDS, EACH, LIMIT = ["recall8", "recall16", "copy16", "reverse8"], 16, 48
CLOSE = 1e-2
"""Below it two logits are rounding's to order."""
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def prompts() -> list[list[list[int]]]:
    """By kind; those of a kind have one length, so that transformers takes them as one batch without padding."""
    rng, tokens = random.Random(77), recall_model.tokenizer()
    return [[recall_model.encode_prompt(tokens, tasks.HELD_OUT[kind](rng)) for _ in range(EACH)] for kind in KINDS]


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(
        recall_model.PATH, dtype=torch.bfloat16, local_files_only=True, attn_implementation="eager"
    ).to(CUDA)


@pytest.fixture(scope="module")
def expected(reference: Any, prompts: list[list[list[int]]]) -> list[list[int]]:
    answers = []
    for alike in prompts:
        ids = torch.tensor(alike, device=CUDA)
        answers += reference.generate(ids, max_new_tokens=LIMIT, do_sample=False)[:, ids.shape[1] :].tolist()
    return answers


@pytest.fixture(scope="module", params=["generic", "fast"])
def model(request: pytest.FixtureRequest) -> Model:
    fast = request.param == "fast"
    loaded = load_model(str(recall_model.PATH), device=CUDA, dtype="bfloat16", fast_path=fast)
    loaded.create_cache(1, 16)
    assert loaded.path == request.param
    return loaded


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("captured", [True, False])
def test_greedy_tokens_are_transformers(
    model: Model, captured: bool, overlap: bool, prompts: list[list[list[int]]], reference: Any, expected: Any
) -> None:
    capture = CudaCapture() if captured else None
    asked = [prompt for alike in prompts for prompt in alike]
    group = LocalGroup(model, max_batch_size=len(asked), num_blocks=4000, overlap=overlap, capture=capture)
    params = SamplingParams(max_tokens=LIMIT, temperature=0.0, end_ids=model.end_ids)
    for prompt, ours, theirs in zip(asked, group.generate(asked, params), expected, strict=True):
        check_until_close(reference, prompt, ours, theirs)
    assert captured == ("" in group.eager)


def check_until_close(reference: Any, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """Fail where two answers part and transformers' two best logits are not close."""
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            ids = torch.tensor([prompt + theirs[:index]], device=CUDA)
            best, second = reference(ids).logits[0, -1].float().topk(2).values.tolist()
            assert best - second < CLOSE, f"token {index} of {len(ours)} is {mine} and not {other}"
            return
    assert len(ours) <= len(theirs), "ours ended with theirs, which is padded behind its end"
