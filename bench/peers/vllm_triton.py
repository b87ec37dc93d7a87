"""vLLM's unified Triton attention kernel."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import torch

from bench.peers import Availability, Run, Setup, import_peer
from bench.tensors import CaseTensors

NAME = "vllm-triton"
MODULE = "vllm.v1.attention.ops.triton_unified_attention"
SEGMENTS = 16  # its server's default
MANY_SEGMENTS = 64  # what its server takes for very small batches
MIN_GRID_2D = 128  # its server leaves the split kernel once the other has so many thread blocks
ALWAYS, NEVER = 2**30, -1


def available() -> Availability:
    """Import the peer and say how that went."""
    return import_peer(MODULE)


def decode(tensors: CaseTensors) -> tuple[Setup, ...]:
    """As its server chooses, and each of its kernels forced, since its choice has a known cliff."""
    choice = MIN_GRID_2D // tensors.case.num_kv_heads
    return (
        Setup("server's choice", partial(_attend, tensors, choice, SEGMENTS)),
        Setup("2d", partial(_attend, tensors, NEVER, SEGMENTS)),
        Setup("3d 16 segments", partial(_attend, tensors, ALWAYS, SEGMENTS)),
        Setup("3d 64 segments", partial(_attend, tensors, ALWAYS, MANY_SEGMENTS)),
    )


def prefill(tensors: CaseTensors) -> tuple[Setup, ...]:
    """Its 2d kernel, the only one for long queries."""
    return (Setup("2d", partial(_attend, tensors, NEVER, SEGMENTS)),)


def _attend(tensors: CaseTensors, seq_threshold_3d: int, num_segments: int) -> Run:
    case = tensors.case
    padded_dim = 1 << (case.head_dim - 1).bit_length()
    out = tensors.new_out()
    # Without scratch it would silently run its slow path. Long queries never use it.
    rows = case.num_tokens if seq_threshold_3d != NEVER else 1
    shape = (rows, case.num_q_heads, num_segments)
    scratch = partial(torch.empty, dtype=torch.float32, device=tensors.q.device)
    arguments = {
        "q": tensors.q,
        "k": tensors.k_cache,
        "v": tensors.v_cache,
        "out": out,
        "cu_seqlens_q": tensors.cu_seqlens_q,
        "max_seqlen_q": case.q_len,
        "seqused_k": tensors.seq_lens,
        "max_seqlen_k": case.seq_len,
        "softmax_scale": tensors.sm_scale,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": tensors.block_table,
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
        "seq_threshold_3D": seq_threshold_3d,
        "num_par_softmax_segments": num_segments,
        "softmax_segm_output": scratch((*shape, padded_dim)),
        "softmax_segm_max": scratch(shape),
        "softmax_segm_expsum": scratch(shape),
    }
    attention = import_module(MODULE).unified_attention

    def run() -> torch.Tensor:
        attention(**arguments)
        return out

    return run
