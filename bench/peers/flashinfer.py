"""FlashInfer: its two decode kernels, and its fa2 and fa3 prefill kernels."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from bench.peers import Availability, Run, Setup, import_peer
from bench.tensors import CaseTensors

NAME = "flashinfer"
WORKSPACE_BYTES = 512 * 1024 * 1024
LAYOUT = "NHD"


def available() -> Availability:
    """Import the peer and say how that went."""
    return import_peer("flashinfer")


def decode(tensors: CaseTensors) -> tuple[Setup, ...]:
    """On CUDA cores, and on tensor cores."""
    return (
        Setup("cuda cores", partial(_decode, tensors, use_tensor_cores=False)),
        Setup("tensor cores", partial(_decode, tensors, use_tensor_cores=True)),
    )


def prefill(tensors: CaseTensors) -> tuple[Setup, ...]:
    """The portable kernel, and the Hopper one."""
    return tuple(Setup(name, partial(_prefill, tensors, name)) for name in ("fa2", "fa3"))


def _pages(tensors: CaseTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Page CSR: indptr and last_page_len on the host, where its planner reads them, and indices."""
    case = tensors.case
    indptr = torch.arange(case.num_seqs + 1, dtype=torch.int32) * case.blocks_per_seq
    last = case.seq_len - (case.blocks_per_seq - 1) * case.block_size
    last_page_len = torch.full((case.num_seqs,), last, dtype=torch.int32)
    return indptr, tensors.block_table.flatten(), last_page_len


def _workspace(tensors: CaseTensors) -> torch.Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=tensors.q.device)


def _decode(tensors: CaseTensors, *, use_tensor_cores: bool) -> Run:
    case = tensors.case
    wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        _workspace(tensors),
        LAYOUT,
        use_tensor_cores=use_tensor_cores,
        backend="fa2" if use_tensor_cores else "auto",
    )
    wrapper.plan(
        *_pages(tensors),
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        case.block_size,
        q_data_type=tensors.q.dtype,
        kv_data_type=tensors.k_cache.dtype,
        sm_scale=tensors.sm_scale,
    )
    return _run(tensors, wrapper.run)


def _prefill(tensors: CaseTensors, backend: str) -> Run:
    case = tensors.case
    wrapper = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper(
        _workspace(tensors), LAYOUT, backend=backend
    )
    wrapper.plan(
        tensors.cu_seqlens_q.cpu(),
        *_pages(tensors),
        case.num_q_heads,
        case.num_kv_heads,
        case.head_dim,
        case.block_size,
        causal=True,
        q_data_type=tensors.q.dtype,
        kv_data_type=tensors.k_cache.dtype,
        sm_scale=tensors.sm_scale,
    )
    return _run(tensors, wrapper.run)


def _run(tensors: CaseTensors, attend: partial[torch.Tensor]) -> Run:
    out = tensors.new_out()
    return partial(attend, tensors.q, (tensors.k_cache, tensors.v_cache), out=out)
