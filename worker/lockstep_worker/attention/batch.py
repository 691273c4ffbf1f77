"""What one forward pass computes: sequences packed behind one another, and where their keys and values live."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One step's tokens, all tensors on the model's device.

    A sequence brings one token (decode) or a chunk of its prompt (prefill), in any mix and order.

    Shape legend: T packed tokens, S sequences, M most blocks a sequence has, n rows that sample.
    """

    input_ids: Tensor
    """int64 [T]"""
    positions: Tensor
    """int64 [T]: each token's place in its sequence"""
    slot_mapping: Tensor
    """int64 [T]: block * block_size + offset, where the token's key and value are written"""
    query_start: Tensor
    """int32 [S+1]: sequence s has the tokens query_start[s] to query_start[s+1]"""
    context_lens: Tensor
    """int32 [S]: tokens of the sequence in the cache, this step's included"""
    block_tables: Tensor
    """int32 [S, M]: the sequence's blocks in order; entries beyond its context hold any valid block"""
    logit_rows: Tensor
    """int64 [n]: indices into T of the tokens whose logits are wanted"""
    max_query: int
    """the most tokens that a sequence brings"""
    max_context: int
    """the largest of `context_lens`"""
