"""Paged attention in plain torch, a sequence and a query head at a time, in float32: what the kernel is held equal to.

Shape legend: Q query tokens of a sequence, C its context, D head size; the others as in `paged`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep_worker.kernels.paged_arguments import PagedSequences, Scoring


def paged_attention_reference(
    q_THD: Tensor, keys_NBKD: Tensor, values_NBKD: Tensor, sequences: PagedSequences, scoring: Scoring
) -> Tensor:
    """Attend as `paged_attention` does; returns [T, H, D]. Assignments play no part: all tokens are computed."""
    out_THD = torch.zeros_like(q_THD)
    group = q_THD.shape[1] // keys_NBKD.shape[2]
    starts = sequences.query_start.tolist()
    for index, context in enumerate(sequences.context_lens.tolist()):
        tokens = slice(starts[index], starts[index + 1])
        blocks = sequences.block_tables[index, : -(-context // keys_NBKD.shape[1])].long()
        keys_CKD, values_CKD = (cache[blocks].flatten(0, 1)[:context].float() for cache in (keys_NBKD, values_NBKD))
        for head in range(q_THD.shape[1]):
            kv = head // group
            weights = _weigh(q_THD[tokens, head].float() @ keys_CKD[:, kv].T, head, scoring)
            out_THD[tokens, head] = (weights @ values_CKD[:, kv]).to(out_THD.dtype)
    return out_THD


def _weigh(products_QC: Tensor, head: int, scoring: Scoring) -> Tensor:
    queries, context = products_QC.shape
    scores = products_QC * scoring.scaling
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    behind = torch.arange(context - queries, context)[:, None] - torch.arange(context)[None, :]
    is_seen = behind >= 0
    if scoring.sliding_window is not None:
        is_seen &= behind < scoring.sliding_window
    scores = scores.masked_fill(~is_seen.to(scores.device), float("-inf"))
    if scoring.sinks is not None:
        scores = torch.cat((scores, scoring.sinks[head].float().expand(queries, 1)), dim=1)
    return scores.softmax(dim=1)[:, :context].nan_to_num()
