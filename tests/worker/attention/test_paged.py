"""The backend for GPUs attends as the reference does, and a whole model says the same through either."""

from __future__ import annotations

import pytest
import torch

from lockstep_worker.attention import choose
from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.attention.protocol import AttentionOptions, AttentionShape
from lockstep_worker.attention.sdpa import SdpaBackend
from support.data import recall_model
from support.kernels.batches import Heads, as_captured, pack_lengths
from support.worlds.greedy import GreedyDriver

CPU = torch.device("cpu")
HEADS = Heads(kv_heads=1, group=2, head_dim=16)
PLAIN = AttentionOptions(scaling=0.25)
BATCHES = {
    "decodes": [(1, 1), (1, 18), (1, 40)],
    "one prompt": [(20, 20)],
    "a chunk behind a prefix": [(3, 37)],
    "prompts, drafts and decodes": [(1, 9), (4, 30), (1, 1), (12, 12), (1, 17)],
}


@pytest.mark.parametrize(
    "options",
    [PLAIN, AttentionOptions(0.25, sliding_window=6, softcap=3.0, sinks=torch.tensor([0.5, -1.0]))],
    ids=["plain", "all options"],
)
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_it_attends_and_writes_as_the_reference_does(lengths: list[tuple[int, int]], options: AttentionOptions) -> None:
    torch.manual_seed(0)
    kv, other = (HEADS.cache(24, 4, torch.float32, CPU) for _ in range(2))
    for cache, copy in zip(kv.keys + kv.values, other.keys + other.values, strict=True):
        copy.copy_(cache)
    batch = pack_lengths(lengths, kv)
    q, k, v = HEADS.states(len(batch.positions), torch.float32, CPU)
    found = PagedBackend(kv, HEADS.shape).prepare(batch).attend(0, q, k, v, options)
    expected = SdpaBackend(other, HEADS.shape).prepare(batch).attend(0, q, k, v, options)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(kv.keys[0], other.keys[0]) and torch.equal(kv.values[0], other.values[0])


def test_a_captured_decode_is_planned_without_its_contexts() -> None:
    kv = HEADS.cache(40, 4, torch.float32, CPU)
    batch = pack_lengths([(1, 5), (1, 33)], kv)
    backend = PagedBackend(kv, HEADS.shape)
    [known], [captured] = (backend.prepare(one)._parts for one in (batch, as_captured(batch, 131072)))
    assert known == captured


def test_runs_share_their_room_for_partial_results() -> None:
    kv = HEADS.cache(40, 4, torch.float32, CPU)
    backend = PagedBackend(kv, HEADS.shape)
    runs = [backend.prepare(pack_lengths(lengths, kv)) for lengths in BATCHES.values()]
    assert len({run._partials.sums.data_ptr() for run in runs}) == 1


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "heads", "serves"),
    [
        ("cpu", torch.float32, 64, {8}, False),
        ("cuda", torch.float32, 64, {8}, True),
        ("cuda", torch.bfloat16, 256, {128}, True),
        ("cuda", torch.float16, 16, {1}, True),
        ("cuda", torch.float64, 64, {8}, False),
        ("cuda", torch.bfloat16, 8, {8}, False),
        ("cuda", torch.bfloat16, 512, {8}, False),
        ("cuda", torch.bfloat16, 64, {8, 4}, False),
        ("cuda", torch.bfloat16, 64, {129}, False),
    ],
)
def test_it_serves_gpus_with_heads_that_its_tiles_take(
    device: str, dtype: torch.dtype, head_dim: int, heads: set[int], serves: bool
) -> None:
    class Cache:
        keys = [type("Keys", (), {"device": torch.device(device), "dtype": dtype})]

    shape = AttentionShape(1, frozenset(heads), 1, head_dim, frozenset())
    assert PagedBackend.serves(Cache(), shape) is serves  # type: ignore[arg-type]


def test_a_model_says_the_same_through_it_with_chunks_and_a_prefix_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = recall_model.load_recall()
    copied, recalled = recall_model.prompts(0, 5)[4], recall_model.prompts(0, 1)[0]
    said = []
    for kind in (SdpaBackend, PagedBackend):
        monkeypatch.setattr(choose, "BACKENDS", (kind,))
        monkeypatch.setattr(PagedBackend, "serves", staticmethod(lambda kv, shape: True))
        driver = GreedyDriver(model, num_blocks=40, block_size=8, chunk=30)
        assert type(model._attention) is kind
        together = driver.run([copied, recalled[:20]], 4)
        again = driver.run([copied], 3)
        assert driver.hit_tokens > 0
        said.append((together, again))
    assert said[0] == said[1]
