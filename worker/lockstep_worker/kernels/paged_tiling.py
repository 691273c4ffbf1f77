"""How paged attention is cut into programs: a small table of measurements, and the arithmetic around it.

All of it follows from a batch's layout, the model's shape and the GPU, and nothing from the contexts' lengths, which a
captured graph does not know.

Decodes were measured on an H200 with 8 KV heads of size 128 in bfloat16, at contexts of 512 to 768 tokens; everything
else follows them by analogy.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_SPLITS = 32
"""Of one context. At one sequence and 8 KV heads an H200 is full with 32."""
MOST_ROWS = 128
"""Of a program's tile."""

_LEAST_ROWS = 16  # of a tensor core's operand
_FIXED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """How programs share the work and how each is run."""

    queries: int
    """the most tokens of an assignment"""
    rows: int
    """query rows of a tile: tokens x heads of a group, padded to a power of two"""
    keys: int
    """keys of a tile"""
    splits: int
    """programs that share one assignment's context"""
    warps: int
    depth: int
    """tiles whose loads are under way together"""
    is_fixed: bool = False
    """a row's numbers are the same whatever rows share its program"""

    def partial_rows(self, assignments: int, kv_heads: int) -> int:
        """Count the rows of partial results."""
        return assignments * kv_heads * self.splits * self.rows if self.splits > 1 else 0


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads on this rank, and the GPU they run on."""

    kv_heads: int
    group: int
    """query heads a KV head, `MOST_ROWS` at most"""
    head_bytes: int
    """of one head of one token, its size padded to a power of two"""
    processors: int
    """the GPU's"""

    @property
    def most_partial_rows(self) -> int:
        """The partial results of any batch: contexts are split only where programs are fewer than the GPU holds."""
        return _programs_wanted(self.processors) * MOST_ROWS


def decode_tiling(sequences: int, heads: Heads) -> Tiling:
    """Choose for sequences that bring one token each."""
    programs = sequences * heads.kv_heads
    rows = max(_LEAST_ROWS, _power_of_two(heads.group))
    splits = _splits(programs, heads.processors)
    if programs >= 2048:
        keys, warps, depth = 32, 1, 4
    elif programs >= 512:
        keys, warps, depth = 64, 2, 4
    else:
        keys, warps, depth = 64, 4, 3
    if rows > _LEAST_ROWS or heads.head_bytes > 256:  # more than one or two warps have registers for
        warps = max(4, rows // 16)
    return Tiling(1, rows, _fit(keys, heads.head_bytes), splits, warps, depth)


def chunk_queries(tokens: int, heads: Heads) -> int:
    """Choose how many tokens an assignment has, where sequences bring several.

    Args:
        tokens: that all these sequences bring together.
        heads: the model's.
    """
    return _chunk_rows(tokens, heads) // heads.group


def chunk_tiling(assignments: int, tokens: int, heads: Heads) -> Tiling:
    """Choose for as many assignments of `chunk_queries(tokens, heads)` tokens at most."""
    rows = _chunk_rows(tokens, heads)
    splits = _splits(assignments * heads.kv_heads, heads.processors)
    return Tiling(rows // heads.group, rows, _fit(64, heads.head_bytes), splits, rows // 16, depth=3)


def fixed_tiling(heads: Heads) -> Tiling:
    """Choose for sequences that bring one token or many, the same for all batches: no split, and one shape of tile.

    A decode fills few of a tile's rows, but it is the keys that it waits for.
    """
    rows = MOST_ROWS if heads.group > _FIXED_ROWS else _FIXED_ROWS
    keys = _fit(64, heads.head_bytes)
    return Tiling(rows // heads.group, rows, keys, splits=1, warps=rows // 16, depth=3, is_fixed=True)


def _chunk_rows(tokens: int, heads: Heads) -> int:
    """Take large tiles where they fill the GPU: each reads all keys before it."""
    programs = tokens * heads.group * heads.kv_heads // MOST_ROWS
    is_full = programs >= heads.processors and heads.head_bytes <= 512
    return MOST_ROWS if is_full or heads.group > 64 else 64


def _splits(programs: int, processors: int) -> int:
    """Fill the GPU: the largest power of two that leaves no program waiting for another to end."""
    room = _programs_wanted(processors) // programs
    return min(1 << (room.bit_length() - 1), MOST_SPLITS) if room else 1


def _programs_wanted(processors: int) -> int:
    return 2 * processors


def _fit(keys: int, head_bytes: int) -> int:
    """Make tiles smaller for large heads, so that those whose loads are under way fit into a processor's memory."""
    while keys > 16 and keys * head_bytes > 64 * 256:
        keys //= 2
    return keys


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
