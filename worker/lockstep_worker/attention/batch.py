"""What one forward computes: sequences packed behind one another, and where their keys and values live.

An example of blocks of 4 tokens: sequence 0 decodes its sixth token, sequence 1 brings a prompt of three.

    positions     5  | 0  1  2      query_start   0 1 4
    kv_cells      13 | 32 33 34     context_lens  6 3
    block_tables  [7 3] [8 .]       logit_rows    0 3

`query_start` and `context_lens` are in `HostBatch` for who plans and on the device for who runs: a captured graph's
batch has the same `HostBatch` at each replay, with the most that may come, and other tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch as the host laid it out: what a backend plans with, so that it need not ask the device.

    S sequences, each with at least one token.
    """

    query_start: npt.NDArray[np.int64]
    """[S+1]: sequence s has the packed tokens query_start[s] to query_start[s+1]"""
    context_lens: npt.NDArray[np.int32]
    """[S]: tokens of the sequence in the cache, this run's included"""
    max_query: int
    """the most tokens that a sequence brings"""
    max_context: int
    """the longest context"""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One run's tokens, all tensors on the model's device.

    A sequence brings one token (decode), a few (a decode with drafts) or a chunk of its prompt (prefill), in any mix
    and order.

    Shape legend: T packed tokens, S sequences, M most blocks a sequence has, n rows that sample.
    """

    host: HostBatch
    input_ids: Tensor
    """int64 [T]"""
    positions: Tensor
    """int64 [T]: each token's index in its sequence"""
    kv_cells: Tensor
    """int64 [T]: block * block_size + offset, where the token's key and value are written"""
    query_start: Tensor
    """int32 [S+1], as `HostBatch.query_start`"""
    context_lens: Tensor
    """int32 [S], as `HostBatch.context_lens`"""
    block_tables: Tensor
    """int32 [S, M]: the sequence's blocks in order; entries beyond its context hold any valid block"""
    logit_rows: Tensor
    """int64 [n]: indices into T of the tokens whose logits are wanted"""
