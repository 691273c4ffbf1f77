"""What `attention` computes, in plain torch and float32: one row after another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep_worker.kernels.decode.attention import Heads


def attend_reference(
    qkv_BX: Tensor,
    query_norm_D: Tensor | None,
    key_norm_D: Tensor | None,
    cos_sin_LD: Tensor,
    keys_NCKD: Tensor,
    values_NCKD: Tensor,
    tables_BM: Tensor,
    positions_B: Tensor,
    heads: Heads,
) -> Tensor:
    """The attention [B, H, D] of each row's new token, whose key and value are written to the cache.

    Args are those of `attend`.
    """
    sizes = [heads.query_heads, heads.kv_heads, heads.kv_heads]
    q_BHD, k_BKD, v_BKD = qkv_BX.float().unflatten(-1, (-1, heads.head_dim)).split(sizes, 1)
    cos_BD, sin_BD = (half.repeat(1, 2) for half in cos_sin_LD[positions_B].chunk(2, -1))
    q_BHD = _turned(q_BHD, query_norm_D, cos_BD, sin_BD, heads.eps)
    k_BKD = _turned(k_BKD, key_norm_D, cos_BD, sin_BD, heads.eps)
    out = []
    for row, position in enumerate(positions_B.tolist()):
        token = torch.arange(position + 1, device=tables_BM.device)
        block, offset = tables_BM[row, token // keys_NCKD.shape[1]].long(), token % keys_NCKD.shape[1]
        keys_NCKD[block[-1], offset[-1]] = k_BKD[row].to(keys_NCKD.dtype)
        values_NCKD[block[-1], offset[-1]] = v_BKD[row].to(values_NCKD.dtype)
        seen = slice(max(position + 1 - heads.window, 0) if heads.window else 0, None)
        k, v = (cache[block[seen], offset[seen]].float().transpose(0, 1) for cache in (keys_NCKD, values_NCKD))
        q = q_BHD[row, :, None]
        out.append(F.scaled_dot_product_attention(q, k, v, scale=heads.scaling, enable_gqa=True).squeeze(1))
    return torch.stack(out)


def _turned(x_BHD: Tensor, norm_D: Tensor | None, cos_BD: Tensor, sin_BD: Tensor, eps: float) -> Tensor:
    if norm_D is not None:
        x_BHD = F.rms_norm(x_BHD, norm_D.shape, norm_D.float(), eps)
    first, second = x_BHD.chunk(2, -1)
    return x_BHD * cos_BD[:, None] + torch.cat([-second, first], -1) * sin_BD[:, None]
