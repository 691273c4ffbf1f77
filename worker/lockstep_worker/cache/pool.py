"""The block pool: which blocks of the KV cache are free, held, or kept for their prefix. Host only.

Knows nothing of torch, requests or slots: the scheduler asks for blocks and gives them back. Every rank that makes the
same calls in the same order gets the same blocks, so ranks need not talk about them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from lockstep_worker.errors import NoFreeBlocks

Tokens = Sequence[int] | npt.NDArray[np.integer]

_DIGEST_BYTES = 16
_INT32 = np.dtype("<i4")
ROOT = b""
"""The digest that stands before a sequence's first block."""


class BlockPool:
    """Hands out blocks, counts their references and finds cached prefixes.

    A block is in one of three states: free; held (one reference or more); or evictable (no reference, but its content
    is known by its digest). A digest chains over all token ids from the start of the sequence, so that equal digests
    mean equal prefixes.

    Args:
        num_blocks: how many blocks the device tensors have.
        block_size: tokens a block.
        prefix_cache: False forgets a block's content with its last reference.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, got {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.num_free = num_blocks
        """How many blocks `allocate` could hand out now."""
        self._references = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._digests: list[bytes | None] = [None] * num_blocks
        self._owners: dict[bytes, int] = {}  # the one block that answers for a digest

    def match(self, tokens: Tokens) -> list[int]:
        """Find the longest cached chain of full blocks of a prompt, and take a reference on each block.

        The last token is never covered, even by a full hit: its logits are needed, so it must be computed.

        Args:
            tokens: the prompt's token ids.
        """
        blocks = self._find(tokens)
        for block in blocks:
            if not self._references[block]:
                del self._evictable[block]
                self.num_free -= 1
            self._references[block] += 1
        return blocks

    def probe(self, tokens: Tokens) -> int:
        """Say how many tokens `match` would find; takes no reference and changes no order."""
        return len(self._find(tokens)) * self.block_size

    def allocate(self, count: int) -> list[int]:
        """Take blocks of unknown content, each with one reference: free ones first, then the least recently used.

        Raises:
            NoFreeBlocks: fewer than `count` can be had; nothing was taken.
        """
        if count > self.num_free:
            raise NoFreeBlocks(f"{count} KV blocks asked for, {self.num_free} of {self.num_blocks} can be had")
        take_free, references = self._free.popleft, self._references
        num_unused = min(count, len(self._free))
        blocks = [take_free() for _ in range(num_unused)]
        blocks += [self._evict() for _ in range(count - num_unused)]
        for block in blocks:
            references[block] = 1
        self.num_free -= count
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block.

        A sequence's blocks come in their order; its tail is evicted before its head, which more prompts share.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is released more often than taken"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._retire(block)

    def commit(self, blocks: Sequence[int], tokens: Tokens, num_computed: int) -> None:
        """Make a sequence's full blocks known to `match`.

        May be called after every step: blocks that are known already cost nothing. Where another block holds the same
        prefix, that one keeps answering for it.

        Args:
            blocks: the sequence's blocks in order, all held by it.
            tokens: its token ids; at least `num_computed`.
            num_computed: how many of them have their keys and values in the cache.
        """
        if not self.prefix_cache:
            return
        digests = self._digests
        first = full = num_computed // self.block_size
        digest = None
        while first and (digest := digests[blocks[first - 1]]) is None:
            first -= 1
        parent = digest or ROOT
        for index in range(first, full):
            parent = self._chain(parent, tokens, index)
            digests[blocks[index]] = parent
            self._owners.setdefault(parent, blocks[index])

    def commit_next(self, parents: Sequence[int], blocks: Sequence[int], tokens: npt.NDArray[np.int32]) -> list[int]:
        """Make one full block each of many sequences known, as `commit` would for one after another, in half the time.

        Args:
            parents: the block before it in its sequence; -1 before the first.
            blocks: the full block, held.
            tokens: its token ids, [blocks, block_size].

        Returns:
            The indices of those that are as unknown as before, since the block before them is: they take `commit`.
        """
        left: list[int] = []
        digests, owners, size = self._digests, self._owners, self.block_size * _INT32.itemsize
        content = tokens.astype(_INT32, copy=False).tobytes()
        for index, (parent, block) in enumerate(zip(parents, blocks, strict=True)):
            before = digests[parent] if parent >= 0 else ROOT
            if before is None:
                left.append(index)
            elif digests[block] is None:
                ids = content[index * size : (index + 1) * size]
                digests[block] = digest = blake2b(before + ids, digest_size=_DIGEST_BYTES).digest()
                owners.setdefault(digest, block)
        return left

    def check(self) -> None:
        """Assert that every block is in exactly one state and that digests and owners agree."""
        free, evictable = set(self._free), set(self._evictable)
        assert len(free) == len(self._free), f"a block is free twice: {sorted(self._free)}"
        held = {block for block, count in enumerate(self._references) if count > 0}
        assert min(self._references) >= 0, f"negative reference count: {self._references}"
        assert len(free) + len(evictable) + len(held) == self.num_blocks, (free, evictable, held)
        assert free | evictable | held == set(range(self.num_blocks)), (free, evictable, held)
        assert self.num_free == len(free) + len(evictable), (self.num_free, free, evictable)
        assert all(self._digests[block] is None for block in free), "a free block has a digest"
        for block in evictable:
            digest = self._digests[block]
            assert digest is not None and self._owners.get(digest) == block, f"evictable block {block} owns no digest"
        for digest, block in self._owners.items():
            assert self._digests[block] == digest, f"block {block} answers for a digest that it does not have"

    def _find(self, tokens: Tokens) -> list[int]:
        """Find the longest cached chain of full blocks that leaves out the last token."""
        blocks: list[int] = []
        digest = ROOT
        for index in range((len(tokens) - 1) // self.block_size if self._owners else 0):
            digest = self._chain(digest, tokens, index)
            block = self._owners.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _chain(self, parent: bytes, tokens: Tokens, index: int) -> bytes:
        """Compute the digest of block `index` from its parent's digest and its own token ids."""
        ids = tokens[index * self.block_size : (index + 1) * self.block_size]
        return blake2b(parent + np.asarray(ids, dtype=_INT32).tobytes(), digest_size=_DIGEST_BYTES).digest()

    def _retire(self, block: int) -> None:
        self.num_free += 1
        digest = self._digests[block]
        if digest is not None and self._owners.setdefault(digest, block) == block:
            self._evictable[block] = None
            return
        self._digests[block] = None
        self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._evictable.popitem(last=False)
        digest = self._digests[block]
        assert digest is not None, f"evictable block {block} has no digest"
        del self._owners[digest]
        self._digests[block] = None
        return block
