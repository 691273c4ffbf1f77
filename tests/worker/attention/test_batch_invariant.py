"""A token's attention is the same bits in any batch and any chunk, with each option and size of block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep_worker.attention import choose
from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.attention.protocol import AttentionOptions
from lockstep_worker.attention.sdpa import SdpaBackend
from lockstep_worker.cache.tensors import KVCache
from lockstep_worker.errors import ConfigError
from support.kernels.batches import Heads, as_captured, pack_lengths
from support.kernels.exact_dot import make_dots_exact

CPU = torch.device("cpu")
CONTEXT = 150
OTHERS = [(1, 66), (5, 40), (40, 130), (1, 1)]
OPTIONS = {
    "plain": AttentionOptions(0.25),
    "window": AttentionOptions(0.25, sliding_window=50),
    "sinks and softcap": AttentionOptions(0.25, softcap=4.0, sinks=torch.tensor([0.5, -1.0, 0.0])),
    "window and sinks": AttentionOptions(0.25, sliding_window=70, sinks=torch.tensor([0.5, -1.0, 0.0])),
}
HEADS = Heads(kv_heads=1, group=3, head_dim=16)
LONE_HEADS = Heads(kv_heads=1, group=40, head_dim=16)
"""Too many for two tokens in a program."""


@pytest.fixture(autouse=True)
def rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    make_dots_exact(monkeypatch)


def attend_last(
    kv: KVCache, heads: Heads, queries: int, others: list[tuple[int, int]], options: AttentionOptions
) -> Tensor:
    """The last token of a context that the cache has already, in a run of `queries` of its tokens beside others'."""
    torch.manual_seed(1)
    lengths = [(queries, CONTEXT), *others]
    batch = pack_lengths(lengths, kv)  # the first sequence's blocks are the same ones whatever comes behind
    if batch.host.max_query == 1:
        batch = as_captured(batch, 10_000)
    q, _, _ = heads.states(CONTEXT + 200, kv.keys[0].dtype, CPU)
    own, rest = q[CONTEXT - queries : CONTEXT], q[CONTEXT : CONTEXT + len(batch.positions) - queries]
    backend = PagedBackend(kv, heads.shape, batch_invariant=True)
    return backend.prepare(batch).read(0, torch.cat((own, rest)), options)[queries - 1]


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_token_is_attended_to_the_same_bits_in_any_batch_and_chunk(
    options: AttentionOptions, block_size: int
) -> None:
    torch.manual_seed(0)
    kv = HEADS.cache(600 // block_size, block_size, torch.float32, CPU)
    alone = attend_last(kv, HEADS, 1, [], options)
    assert alone.isfinite().all() and alone.any()
    for queries, others in ((2, []), (16, []), (CONTEXT, []), (1, [(1, 9), (1, 70)]), (1, OTHERS), (30, OTHERS)):
        assert torch.equal(attend_last(kv, HEADS, queries, others, options), alone), (queries, others)


def test_programs_of_one_token_see_no_more_than_their_window() -> None:
    torch.manual_seed(0)
    kv = LONE_HEADS.cache(40, 16, torch.float32, CPU)
    options = AttentionOptions(0.25, sliding_window=70)
    batch = pack_lengths([(3, CONTEXT), (1, 100)], kv)
    q, k, v = LONE_HEADS.states(4, torch.float32, CPU)
    found = PagedBackend(kv, LONE_HEADS.shape, batch_invariant=True).prepare(batch).attend(0, q, k, v, options)
    expected = SdpaBackend(kv, LONE_HEADS.shape).prepare(batch).attend(0, q, k, v, options)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_it_is_chosen_where_asked_for_and_refused_where_it_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = HEADS.cache(4, 16, torch.float16, CPU)
    with pytest.raises(ConfigError, match="batch_invariant: the attention that it needs does not serve"):
        choose.choose_backend(kv, HEADS.shape, batch_invariant=True)
    monkeypatch.setattr(PagedBackend, "serves", staticmethod(lambda kv, shape: True))
    chosen = choose.choose_backend(kv, HEADS.shape, batch_invariant=True)
    assert isinstance(chosen, PagedBackend)
    assert chosen._fixed is not None
