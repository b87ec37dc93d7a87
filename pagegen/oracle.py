"""Paged attention in float64, written as the definition reads: the only reference of the project.

It knows no tile, no split and no backend, and must stay simple enough to be checked by eye.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Lookup = Tensor | tuple[Tensor, Tensor]  # block_table, or (kv_indptr, kv_indices)


@dataclass(frozen=True)
class Attention:
    """The meaning a spec gives to attention. 0 means off."""

    layout: str  # NHD or HND
    causal: bool
    window: int  # visible keys, the query's own included
    soft_cap: float


def gather(cache: Tensor, block_ids: Tensor, seq_len: int, layout: str) -> Tensor:
    """The first `seq_len` tokens of the listed blocks: [seq_len, num_kv_heads, dim] float64."""
    blocks = cache[block_ids.long()]
    if layout == "HND":
        blocks = blocks.transpose(1, 2)
    return blocks.reshape(-1, *blocks.shape[2:])[:seq_len].double()


def used_blocks(lookup: Lookup, seq: int, seq_len: int, block_size: int) -> Tensor:
    """Block ids that hold the sequence's tokens; nothing past them is looked at."""
    num_used = math.ceil(seq_len / block_size)
    if isinstance(lookup, tuple):
        indptr, indices = lookup
        first = int(indptr[seq])
        return indices[first : first + num_used]
    return lookup[seq, :num_used]


def visible_keys(attention: Attention, q_len: int, seq_len: int) -> Tensor:
    """[q_len, seq_len] bool: causal aligned to the end, the window counts the query's own key."""
    position = torch.arange(seq_len - q_len, seq_len).unsqueeze(1)
    key = torch.arange(seq_len).unsqueeze(0)
    visible = torch.ones(q_len, seq_len, dtype=torch.bool)
    if attention.causal:
        visible &= key <= position
    if attention.window:
        visible &= key > position - attention.window
    return visible


def softmax_average(scores: Tensor, values: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over visible keys. scores [heads, q, k], values [heads, k, dim] -> out, lse.

    A row without a visible key gives out 0 and lse -inf. What is invisible may be NaN.
    """
    scores = torch.where(visible, scores, -math.inf)
    seen = visible.any(-2).unsqueeze(-1)  # [k, 1]: keys that some row sees
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse).unsqueeze(-1))
    return weights @ torch.where(seen, values, 0.0), lse


def paged_attention(
    q: Tensor,  # [num_tokens, num_q_heads, head_dim]
    k_cache: Tensor,
    v_cache: Tensor,
    lookup: Lookup,
    seq_lens: Tensor,
    cu_seqlens_q: Tensor,
    attention: Attention,
    sm_scale: float,
) -> tuple[Tensor, Tensor]:
    """out [num_tokens, num_q_heads, head_dim_v] and lse [num_tokens, num_q_heads], float64 on CPU.

    Rows of q that belong to no sequence stay NaN. Source: the definition of scaled dot-product
    attention (Vaswani et al., 2017) over keys found through a block table (Kwon et al., 2023).
    """
    token_axis = 2 if attention.layout == "HND" else 1
    block_size = k_cache.shape[token_axis]
    num_q_heads, head_dim_v = q.shape[1], v_cache.shape[-1]
    out = torch.full((q.shape[0], num_q_heads, head_dim_v), math.nan, dtype=torch.float64)
    lse = torch.full((q.shape[0], num_q_heads), math.nan, dtype=torch.float64)
    for seq, seq_len in enumerate(seq_lens.tolist()):
        first, last = int(cu_seqlens_q[seq]), int(cu_seqlens_q[seq + 1])
        block_ids = used_blocks(lookup, seq, seq_len, block_size)
        keys = gather(k_cache, block_ids, seq_len, attention.layout).cpu()
        values = gather(v_cache, block_ids, seq_len, attention.layout).cpu()
        group = num_q_heads // max(keys.shape[1], 1)
        keys = keys.repeat_interleave(group, dim=1).permute(1, 2, 0)  # [heads, dim, k]
        values = values.repeat_interleave(group, dim=1).permute(1, 0, 2)  # [heads, k, dim_v]
        scores = sm_scale * (q[first:last].double().cpu().permute(1, 0, 2) @ keys)
        if attention.soft_cap:
            scores = attention.soft_cap * torch.tanh(scores / attention.soft_cap)
        visible = visible_keys(attention, last - first, seq_len)
        seq_out, seq_lse = softmax_average(scores, values, visible)
        out[first:last], lse[first:last] = seq_out.permute(1, 0, 2), seq_lse.permute(1, 0)
    return out, lse


def decode_attention(
    q: Tensor,  # [num_seqs, num_q_heads, head_dim]
    k_cache: Tensor,
    v_cache: Tensor,
    lookup: Lookup,
    seq_lens: Tensor,
    attention: Attention,
    sm_scale: float,
) -> tuple[Tensor, Tensor]:
    """One query token per sequence: paged_attention with one row each."""
    cu_seqlens_q = torch.arange(q.shape[0] + 1, dtype=torch.int32)
    return paged_attention(q, k_cache, v_cache, lookup, seq_lens, cu_seqlens_q, attention, sm_scale)


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Two states over disjoint keys become one, float64. An empty side has lse -inf (or +inf)."""
    lse_a = torch.where(lse_a == math.inf, -math.inf, lse_a.double())
    lse_b = torch.where(lse_b == math.inf, -math.inf, lse_b.double())
    lse = torch.logaddexp(lse_a, lse_b)
    total = torch.where(lse.isinf(), 0.0, lse)
    out = torch.zeros_like(out_a, dtype=torch.float64)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(part_lse - total).unsqueeze(-1)
        out += torch.where(weight > 0, part.double() * weight, 0.0)
    return out, lse
