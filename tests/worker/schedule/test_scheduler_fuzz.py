"""Random admissions, cancels and preemptions through the real loop and a real model: nothing is lost or differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep_worker.model.forward import Model
from lockstep_worker.model.loader import load_model
from lockstep_worker.wire.messages import FinishCode, NewRequest
from support.data.tiny_models import save_tiny_model
from support.worlds.fuzz import run_fuzz
from support.worlds.local_group import LocalGroup

LONGEST = 40
GROUPS: dict[str, dict[str, Any]] = {
    "roomy": {"num_blocks": 400, "block_size": 8, "max_batch_size": 16, "max_num_tokens": 64},
    "preempting": {"num_blocks": 12, "block_size": 8, "max_batch_size": 8, "max_num_tokens": 64},
    "tiny blocks, tiny budget": {"num_blocks": 75, "block_size": 1, "max_batch_size": 4, "max_num_tokens": 4},
    "one slot": {"num_blocks": 18, "block_size": 4, "max_batch_size": 1, "max_num_tokens": 3},
    "no prefix cache": {"num_blocks": 20, "block_size": 4, "max_batch_size": 8, "max_num_tokens": 9},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = save_tiny_model("llama", tmp_path_factory.mktemp("model"))
    return load_model(str(path), device=torch.device("cpu"), dtype="float32")


def plain_run(model: Model, requests: list[NewRequest]) -> dict[int, list[int]]:
    """The same requests all at once, with room for all, without overlap, prefix cache and chunks."""
    group = LocalGroup(model, max_num_tokens=1 << 14, max_batch_size=256, overlap=False, prefix_cache=False)
    return group.run([list(requests)]).tokens


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", GROUPS)
def test_every_request_ends_once_with_the_tokens_of_the_plain_run(model: Model, name: str, overlap: bool) -> None:
    group = LocalGroup(model, **GROUPS[name], overlap=overlap, prefix_cache=name != "no prefix cache")
    requests, traffic, record, inspector = run_fuzz(group, 1, num_requests=60, cancel_rate=0.1, longest=LONGEST)
    assert set(record.codes) == {request.handle for request in requests}
    plain = plain_run(model, requests)
    for request in requests:
        tokens, code = record.tokens.get(request.handle, []), record.codes[request.handle]
        if code == FinishCode.CANCELLED:
            assert request.handle in traffic.cancelled
            assert tokens == plain[request.handle][: len(tokens)]
        else:
            assert tokens == plain[request.handle]
            assert code == reason(request, tokens, model.max_model_len)
        assert len(record.logprobs.get(request.handle, [])) == len(tokens) * (request.params.logprobs >= 0)
    outcomes = set(record.codes.values())
    assert outcomes == {FinishCode.END_ID, FinishCode.LENGTH, FinishCode.STOP_WORDS, FinishCode.CANCELLED}
    if name == "preempting":
        assert group.scheduler.num_preemptions > 0
    if name in ("one slot", "tiny blocks, tiny budget"):
        assert {"chunk", "overtakes by priority"} <= inspector.seen


def reason(request: NewRequest, tokens: list[int], context: int) -> FinishCode:
    """Why a request with these tokens must have ended, and that it had no reason to end before."""
    params = request.params
    ends = [token in (*params.end_ids, *params.stop_token_ids) for token in tokens]
    limit = min(params.max_tokens, context - len(request.prompt))
    assert not any(ends[:-1])
    assert len(tokens) <= limit
    if tokens[-1] in params.end_ids:
        return FinishCode.END_ID
    return FinishCode.LENGTH if len(tokens) == limit else FinishCode.STOP_WORDS
