"""FlashAttention 3 with a paged cache: the tokenspeed build of the original, and vLLM's fork."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from bench.peers import Availability, Run, Setup, import_peer
from bench.tensors import CaseTensors

NAME = "fa3"
ORIGINAL = "flash_attn_interface"
FORK = "vllm.vllm_flash_attn.flash_attn_interface"


def available() -> Availability:
    """Import either build and say how that went."""
    found = [import_peer(ORIGINAL), import_peer(FORK)]
    text = f"original: {found[0].text}; vllm fork: {found[1].text}"
    return Availability(any(one.ok for one in found), text)


def decode(tensors: CaseTensors) -> tuple[Setup, ...]:
    """Both builds, splits chosen by them, the schedule computed ahead."""
    return (
        Setup("original", partial(_original, tensors)),
        Setup("vllm fork", partial(_fork, tensors)),
    )


def prefill(tensors: CaseTensors) -> tuple[Setup, ...]:
    """The same calls: both builds see only longer queries."""
    return decode(tensors)


def _original(tensors: CaseTensors) -> Run:
    case = tensors.case
    peer = import_module(ORIGINAL)
    metadata = peer.get_scheduler_metadata(
        case.num_seqs,
        case.q_len,
        case.blocks_per_seq * case.block_size,
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        tensors.seq_lens,
        qkv_dtype=tensors.q.dtype,
        page_size=case.block_size,
        causal=True,
    )
    # [num_seqs, q_len, ...]: alike sequences need no cu_seqlens_q, which spares this peer work.
    query = tensors.q.view(case.num_seqs, case.q_len, case.num_q_heads, case.head_dim)

    def run() -> torch.Tensor:
        out: torch.Tensor = peer.flash_attn_with_kvcache(
            query,
            tensors.k_cache,
            tensors.v_cache,
            cache_seqlens=tensors.seq_lens,
            page_table=tensors.block_table,
            softmax_scale=tensors.sm_scale,
            causal=True,
            scheduler_metadata=metadata,
        )
        return out.flatten(0, 1)

    return run


def _fork(tensors: CaseTensors) -> Run:
    case = tensors.case
    peer = import_module(FORK)
    metadata = peer.get_scheduler_metadata(
        batch_size=case.num_seqs,
        max_seqlen_q=case.q_len,
        max_seqlen_k=case.seq_len,
        num_heads_q=case.num_q_heads,
        num_heads_kv=case.num_kv_heads,
        headdim=case.head_dim,
        cache_seqlens=tensors.seq_lens,
        qkv_dtype=tensors.q.dtype,
        cu_seqlens_q=tensors.cu_seqlens_q,
        page_size=case.block_size,
        causal=True,
    )
    out = tensors.new_out()

    def run() -> torch.Tensor:
        peer.flash_attn_varlen_func(
            q=tensors.q,
            k=tensors.k_cache,
            v=tensors.v_cache,
            out=out,
            cu_seqlens_q=tensors.cu_seqlens_q,
            max_seqlen_q=case.q_len,
            seqused_k=tensors.seq_lens,
            max_seqlen_k=case.seq_len,
            softmax_scale=tensors.sm_scale,
            causal=True,
            block_table=tensors.block_table,
            scheduler_metadata=metadata,
            fa_version=3,
        )
        return out

    return run
