"""SGLang's Triton kernels: split decode over token indices, and extend over a cached prefix."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from bench.peers import Availability, Run, Setup, import_peer
from bench.tensors import CaseTensors

NAME = "sglang-triton"
DECODE = "sglang.kernels.ops.attention.decode_attention"
EXTEND = "sglang.kernels.ops.attention.extend_attention"
SPLITS = "sglang.kernels.ops.attention.metadata"
MAX_SPLITS = (8, 16, 32, 64)  # its server's default is 8
MIN_SCHEDULED_SEQS = 256


def available() -> Availability:
    """Import the peer and say how that went."""
    return import_peer(DECODE, EXTEND, SPLITS)


def decode(tensors: CaseTensors) -> tuple[Setup, ...]:
    """One setup for each limit on splits; index lists and split counts are made ahead."""
    return tuple(Setup(f"{most} splits", partial(_decode, tensors, most)) for most in MAX_SPLITS)


def prefill(tensors: CaseTensors) -> tuple[Setup, ...]:
    """Its extend kernel: new K and V contiguous, the prefix from the cache."""
    return (Setup("extend", partial(_extend, tensors)),)


def _token_indices(
    tensors: CaseTensors, first: int, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token CSR of tokens first to last of each sequence: indptr int32, indices int64."""
    case = tensors.case
    device = tensors.q.device
    position = torch.arange(first, last, device=device)
    blocks = tensors.block_table[:, position // case.block_size].long()
    indices = blocks * case.block_size + position % case.block_size
    starts = torch.arange(case.num_seqs + 1, dtype=torch.int32, device=device)
    return starts * (last - first), indices.flatten()


def _num_splits(tensors: CaseTensors, most: int) -> torch.Tensor:
    """Splits of each sequence, by its own kernel, for this device."""
    case = tensors.case
    device = tensors.q.device
    counts = torch.empty(case.num_seqs, dtype=torch.int32, device=device)
    cores = 1
    if device.type == "cuda":
        cores = torch.cuda.get_device_properties(device).multi_processor_count
    import_module(SPLITS).get_num_kv_splits_triton[(1,)](
        counts,
        tensors.seq_lens,
        case.num_seqs,
        1,
        case.num_q_heads,
        case.num_kv_heads,
        most,
        cores,
        MAX_NUM_SEQ=max(MIN_SCHEDULED_SEQS, 1 << (case.num_seqs - 1).bit_length()),
    )
    return counts


def _decode(tensors: CaseTensors, most: int) -> Run:
    case = tensors.case
    indptr, indices = _token_indices(tensors, 0, case.seq_len)
    shape = (case.num_seqs, case.num_q_heads, most)
    scratch = partial(torch.empty, dtype=torch.float32, device=tensors.q.device)
    logits, lse = scratch((*shape, case.head_dim)), scratch(shape)
    counts = _num_splits(tensors, most)
    out = tensors.new_out()
    keys, values = tensors.k_cache.flatten(0, 1), tensors.v_cache.flatten(0, 1)
    attention = import_module(DECODE).decode_attention_fwd
    before = (tensors.q, keys, values, out, indptr, indices, logits, lse, counts)

    def run() -> torch.Tensor:
        attention(*before, most, tensors.sm_scale, 1.0, 1.0)
        return out

    return run


def _extend(tensors: CaseTensors) -> Run:
    case = tensors.case
    prefix = case.seq_len - case.q_len
    indptr, indices = _token_indices(tensors, 0, prefix)
    _, new = _token_indices(tensors, prefix, case.seq_len)
    keys, values = tensors.k_cache.flatten(0, 1), tensors.v_cache.flatten(0, 1)
    new_keys, new_values = keys[new], values[new]
    out = tensors.new_out()
    attention = import_module(EXTEND).extend_attention_fwd
    inputs = (tensors.q, new_keys, new_values, out, keys, values)
    lookup = (tensors.cu_seqlens_q, indptr, indices)

    def run() -> torch.Tensor:
        attention(*inputs, *lookup, None, True, None, case.q_len, 1.0, 1.0, tensors.sm_scale)
        return out

    return run
