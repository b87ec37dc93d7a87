"""LMDeploy's Triton kernels: paged decode, and prefill over a cache flattened first."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from bench.peers import Availability, Run, Setup, import_peer
from bench.tensors import CaseTensors

NAME = "lmdeploy-triton"
DECODE = "lmdeploy.pytorch.kernels.cuda.pagedattention"
PREFILL = "lmdeploy.pytorch.kernels.cuda.flashattention"
FLATTEN = "lmdeploy.pytorch.kernels.cuda.flatten_kv_cache"


def available() -> Availability:
    """Import the peer and say how that went."""
    return import_peer(DECODE, PREFILL, FLATTEN)


def decode(tensors: CaseTensors) -> tuple[Setup, ...]:
    """Its tile is the cache's block, so that is its only setup."""
    return (Setup("", partial(_decode, tensors)),)


def prefill(tensors: CaseTensors) -> tuple[Setup, ...]:
    """Flattening included: every layer of its prefill pays for it."""
    return (Setup("flatten + attention", partial(_prefill, tensors)),)


def _decode(tensors: CaseTensors) -> Run:
    attention = import_module(DECODE).flash_attn_with_kvcache

    def run() -> torch.Tensor:
        # It allocates its result at every call, which a captured graph does not repeat.
        out: torch.Tensor = attention(
            tensors.q,
            tensors.k_cache,
            tensors.v_cache,
            cache_seqlens=tensors.seq_lens,
            page_table=tensors.block_table,
            softmax_scale=tensors.sm_scale,
        )
        return out

    return run


def _prefill(tensors: CaseTensors) -> Run:
    case = tensors.case
    flatten = import_module(FLATTEN).flatten_kv_cache
    attention = import_module(PREFILL).flash_attn_varlen_func
    starts = torch.arange(case.num_seqs + 1, dtype=torch.int32, device=tensors.q.device)
    cu_seqlens_k = starts * case.seq_len
    # Its callers leave room for a block past the end.
    num_rows = (case.num_blocks + 1) * case.block_size

    def run() -> torch.Tensor:
        keys, values = flatten(
            tensors.k_cache,
            tensors.v_cache,
            tensors.seq_lens,
            tensors.block_table,
            start_loc=cu_seqlens_k[:-1],
            out_size=num_rows,
        )
        out: torch.Tensor = attention(
            tensors.q,
            keys,
            values,
            cu_seqlens_q=tensors.cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=case.q_len,
            max_seqlen_k=case.seq_len,
            softmax_scale=tensors.sm_scale,
            causal=True,
        )
        return out

    return run
