import numpy as np
import pytest

from lockstep_worker.cache.pool import BlockPool
from lockstep_worker.errors import NoFreeBlocks


def serve(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Hold, compute and commit one sequence's blocks."""
    blocks = pool.match(tokens)
    blocks += pool.allocate(-(-len(tokens) // pool.block_size) - len(blocks))
    pool.commit(blocks, tokens, len(tokens))
    pool.check()
    return blocks


def test_a_prompt_seen_before_gets_the_blocks_that_hold_it() -> None:
    pool = BlockPool(8, 4)
    first = serve(pool, list(range(10)))
    pool.release(first)
    pool.check()
    assert pool.match([*range(8), 50, 51]) == first[:2]
    pool.check()


def test_blocks_in_use_are_shared_and_freed_by_the_last_holder() -> None:
    pool = BlockPool(4, 2)
    first = serve(pool, [1, 2, 3, 4, 5])
    second = pool.match([1, 2, 3, 4, 9])
    assert second == first[:2]
    pool.release(first)
    assert pool.num_free == 2
    pool.release(second)
    assert pool.num_free == 4
    pool.check()


def test_a_probe_finds_what_a_match_would_and_leaves_no_trace() -> None:
    pool = BlockPool(4, 2)
    assert pool.probe([1, 2, 3, 4, 9]) == 0
    first = serve(pool, [1, 2, 3, 4])
    pool.release(first)
    second = serve(pool, [5, 6])
    pool.release(second)
    assert pool.probe([1, 2, 3, 4, 9]) == 4
    assert pool.probe([1, 2, 3, 4]) == 2
    assert pool.probe([7]) == 0
    assert pool.num_free == 4
    pool.allocate(2)  # had the probe touched the first chain, the second would have been evicted before it
    assert pool.probe([5, 6, 7]) == 2
    pool.check()


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_full_hit_still_computes_the_last_token(length: int) -> None:
    pool = BlockPool(8, 4)
    tokens = list(range(length))
    pool.release(serve(pool, tokens))
    assert len(pool.match(tokens)) * 4 == length - 4


def test_one_token_more_than_full_blocks_hits_them_all() -> None:
    pool = BlockPool(8, 4)
    pool.release(serve(pool, list(range(9))))
    assert len(pool.match(list(range(9)))) == 2


def test_the_same_block_content_after_another_start_is_no_hit() -> None:
    pool = BlockPool(8, 2)
    pool.release(serve(pool, [1, 2, 3, 4, 0]))
    assert pool.match([9, 2, 3, 4, 0]) == []
    assert pool.match([3, 4, 0]) == []


def test_token_boundaries_are_part_of_the_hash() -> None:
    pool = BlockPool(8, 2)
    pool.release(serve(pool, [1, 23, 0]))
    assert pool.match([12, 3, 0]) == []


def test_uncomputed_tokens_are_never_matched() -> None:
    pool = BlockPool(8, 2)
    tokens = [1, 2, 3, 4, 5]
    blocks = pool.allocate(3)
    pool.commit(blocks, tokens, 3)
    assert pool.match(tokens) == blocks[:1]
    pool.commit(blocks, tokens, 4)
    pool.check()
    assert pool.match(tokens) == blocks[:2]


def test_commit_again_changes_nothing() -> None:
    pool = BlockPool(8, 2)
    tokens = [1, 2, 3, 4, 5]
    blocks = serve(pool, tokens)
    pool.commit(blocks, tokens, 5)
    pool.release(blocks)
    pool.check()
    assert pool.match(tokens) == blocks[:2]


def test_two_sequences_that_compute_the_same_prefix_keep_their_own_blocks() -> None:
    pool = BlockPool(8, 2)
    tokens = [1, 2, 3, 4, 5]
    first, second = pool.allocate(3), pool.allocate(3)
    pool.commit(first, tokens, 5)
    pool.commit(second, tokens, 5)
    pool.check()
    pool.release(second)
    pool.check()
    assert pool.match(tokens) == first[:2]


def test_a_copy_of_a_prefix_answers_for_it_once_the_first_is_evicted() -> None:
    pool = BlockPool(3, 2)
    tokens = [1, 2, 3]
    first, second = pool.allocate(1), pool.allocate(1)
    pool.commit(first, tokens, 2)
    pool.commit(second, tokens, 2)
    pool.release(first)
    pool.allocate(2)
    pool.check()
    pool.release(second)
    pool.check()
    assert pool.match(tokens) == second


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(4, 2)
    old, young = [1, 2, 0], [3, 4, 0]
    pool.release(serve(pool, old))
    pool.release(serve(pool, young))
    pool.release(pool.match(old))  # used again, so `young` is now the older
    pool.allocate(3)
    pool.check()
    assert len(pool.match(old)) == 1
    assert pool.match(young) == []


def test_a_sequence_loses_its_tail_before_its_head() -> None:
    pool = BlockPool(3, 2)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    blocks = pool.allocate(3)
    pool.commit(blocks, tokens, 6)
    pool.release(blocks)
    pool.allocate(1)
    assert pool.match(tokens) == blocks[:2]


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4, 2)
    cached = serve(pool, [1, 2, 0])
    pool.release(cached)
    assert cached[0] not in pool.allocate(3)
    assert pool.match([1, 2, 0]) == cached[:1]


def test_asking_for_too_many_takes_nothing() -> None:
    pool = BlockPool(4, 2)
    pool.allocate(2)
    with pytest.raises(NoFreeBlocks, match="3 KV blocks asked for, 2 of 4"):
        pool.allocate(3)
    pool.check()
    assert pool.num_free == 2
    assert len(pool.allocate(2)) == 2


def test_matched_blocks_cannot_be_evicted() -> None:
    pool = BlockPool(2, 2)
    pool.release(serve(pool, [1, 2, 3]))
    held = pool.match([1, 2, 3])
    assert pool.num_free == 1
    assert not set(held) & set(pool.allocate(1))
    with pytest.raises(NoFreeBlocks):
        pool.allocate(1)


def test_without_prefix_cache_nothing_is_kept() -> None:
    pool = BlockPool(4, 2, prefix_cache=False)
    pool.release(serve(pool, [1, 2, 3]))
    assert pool.match([1, 2, 3]) == []
    assert pool.num_free == 4
    pool.check()


def test_releasing_twice_is_a_fault_of_ours() -> None:
    pool = BlockPool(4, 2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match=r"block 0 is released more often"):
        pool.release(blocks)


def test_lists_and_arrays_of_any_integer_type_hash_alike() -> None:
    pool = BlockPool(8, 2)
    blocks = serve(pool, [1, 2, 3, 4, 5])
    for kind in (np.int32, np.int64, np.uint16):
        assert pool.match(np.array([1, 2, 3, 4, 5], dtype=kind)) == blocks[:2]


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_many_sequences_committed_at_once_are_those_committed_one_after_another(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool, twin = BlockPool(200, 3), BlockPool(200, 3)
    tokens = rng.integers(0, 3, (30, 12), dtype=np.int32)  # so few ids that some of them begin alike
    known = rng.integers(0, 4, 30)
    held = [pool.allocate(4) for _ in range(30)]
    assert held == [twin.allocate(4) for _ in range(30)]
    for one in (pool, twin):
        for blocks, ids, count in zip(held, tokens, known.tolist(), strict=True):
            one.commit(blocks, ids, count * 3)
    latest = rng.integers(0, 4, 30)  # before it some have a gap, and some are known already
    parents = [blocks[index - 1] if index else -1 for blocks, index in zip(held, latest.tolist(), strict=True)]
    newest = [blocks[index] for blocks, index in zip(held, latest.tolist(), strict=True)]
    left = pool.commit_next(parents, newest, tokens.reshape(30, 4, 3)[np.arange(30), latest])
    assert left == np.flatnonzero(latest > known).tolist()
    for row in np.flatnonzero(latest <= known).tolist():
        twin.commit(held[row], tokens[row], (latest.tolist()[row] + 1) * 3)
    assert vars(pool) == vars(twin)
    pool.check()


def test_many_distinct_prompts_leave_nothing_behind() -> None:
    pool = BlockPool(16, 2)
    for number in range(5000):
        pool.release(serve(pool, [number, number + 1, number + 2, number + 3, 0]))
    assert pool.num_free == 16
    assert len(pool._owners) <= 16


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0 and 4"):
        BlockPool(0, 4)
