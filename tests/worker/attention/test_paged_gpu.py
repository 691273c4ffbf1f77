"""On a GPU: the paged backend against the reference in bfloat16, and a captured decode at lengths it never saw.

The two round at different points, so each is compared with the reference in float32, and the paged one may not be
further from it than twice what plain torch is.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lockstep_worker.attention.paged import PagedBackend
from lockstep_worker.attention.protocol import AttentionBackend, AttentionOptions
from lockstep_worker.attention.sdpa import SdpaBackend
from lockstep_worker.cache.tensors import KVCache
from support.kernels.batches import Heads, as_captured, pack_lengths

pytestmark = pytest.mark.gpu

LONGEST = 4096
DECODE_CONTEXTS = (1, 16, 128, 129, 1000, 2048, 4095, 4096)
MIXES = {
    "a long prompt beside decodes": [(1, 700)] * 40 + [(2048, 2048)] + [(1, 1), (1, 4096)],
    "short prompts behind a long prefix": [(17, 4017), (300, 2300), (1, 64)],
    "drafts": [(5, 1005)] * 16 + [(2, 2), (1, 900)],
}


def copy_of(kv: KVCache, heads: Heads, dtype: torch.dtype) -> KVCache:
    device = kv.keys[0].device
    other = KVCache(
        num_layers=1,
        num_blocks=kv.spare_block,
        block_size=kv.block_size,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        dtype=dtype,
        device=device,
    )
    other.keys[0].copy_(kv.keys[0])
    other.values[0].copy_(kv.values[0])
    return other


def make_cache(heads: Heads, lengths: Sequence[tuple[int, int]]) -> KVCache:
    blocks = sum(-(-context // 16) for _, context in lengths)
    return heads.cache(blocks + 8, 16, torch.bfloat16, torch.device("cuda"))


def check_against_float32(found: Tensor, plain: Tensor, exact: Tensor) -> None:
    assert found.isfinite().all()
    own, others = ((one.float() - exact).norm() / exact.norm() for one in (found, plain))
    assert own <= 2 * others + 1e-4, f"error {own:.5f}, plain torch's {others:.5f}"
    torch.testing.assert_close(found.float(), exact, atol=3e-2, rtol=3e-2)


def compare(heads: Heads, lengths: Sequence[tuple[int, int]], options: AttentionOptions) -> None:
    torch.manual_seed(0)
    kv = make_cache(heads, lengths)
    plain_kv, exact_kv = copy_of(kv, heads, torch.bfloat16), copy_of(kv, heads, torch.float32)
    batch = pack_lengths(lengths, kv)
    q, k, v = heads.states(len(batch.positions), torch.bfloat16, kv.keys[0].device)
    backends: list[AttentionBackend] = [PagedBackend(kv, heads.shape), SdpaBackend(plain_kv, heads.shape)]
    found, plain = (one.prepare(batch).attend(0, q, k, v, options) for one in backends)
    exact = SdpaBackend(exact_kv, heads.shape).prepare(batch).attend(0, q.float(), k.float(), v.float(), options)
    check_against_float32(found, plain, exact)
    assert torch.equal(kv.keys[0], plain_kv.keys[0]) and torch.equal(kv.values[0], plain_kv.values[0])
    again = backends[0].prepare(batch).read(0, q, options)
    assert torch.equal(found, again), "the same run twice gives the same bits"


@pytest.mark.parametrize("batch_size", [1, 3, 16, 64, 256])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_decodes_attend_as_the_reference_does(head_dim: int, batch_size: int) -> None:
    contexts = [DECODE_CONTEXTS[(index + batch_size) % len(DECODE_CONTEXTS)] for index in range(batch_size)]
    heads = Heads(kv_heads=2 if batch_size == 256 else 8, group=4, head_dim=head_dim)
    compare(heads, [(1, context) for context in contexts], AttentionOptions(head_dim**-0.5))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("lengths", MIXES.values(), ids=MIXES)
def test_mixed_batches_attend_as_the_reference_does(lengths: list[tuple[int, int]], head_dim: int) -> None:
    compare(Heads(kv_heads=4, group=4, head_dim=head_dim), lengths, AttentionOptions(head_dim**-0.5))


@pytest.mark.parametrize("group", [1, 2, 7, 8, 16])
def test_any_number_of_query_heads_shares_a_kv_head(group: int) -> None:
    heads = Heads(kv_heads=2, group=group, head_dim=128)
    compare(heads, [(1, 900), (70, 500), (1, 3)], AttentionOptions(128**-0.5))
    compare(heads, [(1, 900), (1, 3)], AttentionOptions(128**-0.5))


@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize("window", [None, 1, 128])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_every_option_attends_as_the_reference_does(has_sinks: bool, window: int | None, softcap: float | None) -> None:
    heads = Heads(kv_heads=4, group=4, head_dim=64)
    sinks = torch.linspace(-2.0, 4.0, 16, dtype=torch.bfloat16, device="cuda") if has_sinks else None
    options = AttentionOptions(0.125, sliding_window=window, softcap=softcap, sinks=sinks)
    compare(heads, [(1, 1), (1, 130), (1, 2000)], options)
    compare(heads, [(1, 1), (200, 330), (1, 2000)], options)


@pytest.mark.parametrize("batch_size", [1, 8, 64, 256])
def test_a_captured_decode_is_right_at_other_lengths(batch_size: int) -> None:
    torch.manual_seed(0)
    heads = Heads(kv_heads=4, group=4, head_dim=128)
    options = AttentionOptions(128**-0.5)
    kv = make_cache(heads, [(1, LONGEST)] * min(batch_size, 64) + [(1, 256)] * max(batch_size - 64, 0))
    reference = copy_of(kv, heads, torch.bfloat16)
    backend = PagedBackend(kv, heads.shape)

    def lengths_of(turn: int) -> list[tuple[int, int]]:
        contexts = [[1, 77, LONGEST, 640][(row + turn) % 4] if row < 64 else 1 + row for row in range(batch_size)]
        return [(1, context) for context in contexts]

    kept = pack_lengths([(1, LONGEST) if row < 64 else (1, 256) for row in range(batch_size)], kv)
    captured = as_captured(kept, LONGEST)
    q, k, v = heads.states(batch_size, torch.bfloat16, kv.keys[0].device)
    kept.context_lens.fill_(1)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        backend.prepare(captured).attend(0, q, k, v, options)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.prepare(captured).attend(0, q, k, v, options)
    kv.keys[0].copy_(reference.keys[0])  # as before the first runs wrote to it
    kv.values[0].copy_(reference.values[0])
    for turn in range(4):
        batch = pack_lengths(lengths_of(turn), kv)
        for name in ("kv_cells", "context_lens"):
            getattr(kept, name).copy_(getattr(batch, name))
        kept.block_tables[:, : batch.block_tables.shape[1]] = batch.block_tables
        for states in (q, k, v):
            states.normal_()
        graph.replay()
        expected = SdpaBackend(reference, heads.shape).prepare(batch).attend(0, q, k, v, options)
        torch.testing.assert_close(out.float(), expected.float(), atol=3e-2, rtol=3e-2)
        assert torch.equal(kv.keys[0], reference.keys[0])


def test_a_captured_decode_s_rows_without_context_are_zeros() -> None:
    heads = Heads(kv_heads=8, group=2, head_dim=128)
    kv = make_cache(heads, [(1, 64)] * 4)
    batch = pack_lengths([(1, 64)] * 4, kv)
    q, k, v = heads.states(4, torch.bfloat16, kv.keys[0].device)
    batch.context_lens[2:] = 0
    out = PagedBackend(kv, heads.shape).prepare(batch).attend(0, q, k, v, AttentionOptions(0.1))
    assert out.isfinite().all() and not out[2:].any() and out[:2].any()


def test_runs_planned_ahead_of_the_device_keep_their_own_assignments() -> None:
    """The second run is planned while the first has not begun: its assignments may not overwrite the first's."""
    torch.manual_seed(0)
    heads = Heads(kv_heads=4, group=4, head_dim=128)
    lengths = [[(900, 900), (1, 30)], [(1, 30), (33, 400), (500, 500)]]
    kv = make_cache(heads, [*lengths[0], *lengths[1]])
    batches = [pack_lengths(one, kv) for one in lengths]
    states = [heads.states(len(batch.positions), torch.bfloat16, kv.keys[0].device) for batch in batches]
    options = AttentionOptions(128**-0.5)
    backend = PagedBackend(kv, heads.shape)
    expected = []
    for batch, (q, k, v) in zip(batches, states, strict=True):
        expected.append(backend.prepare(batch).attend(0, q, k, v, options).clone())
        torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
    ahead = [
        backend.prepare(batch).attend(0, q, k, v, options) for batch, (q, k, v) in zip(batches, states, strict=True)
    ]
    for own, right in zip(ahead, expected, strict=True):
        assert torch.equal(own, right)
