"""Calls decode and prefill kernels under Triton's interpreter, on CPU tensors.

It knows launch arguments and grids, as a host does, and nothing of what a kernel does inside.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pagegen.cases import Case, Shape
from pagegen.lower import lower
from pagegen.oracle import Attention
from pagegen.plan import Plan
from pagegen.spec import Layout, Lookup, Spec
from tests.interpret.worker import Interpreter

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def make_spec(
    *,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (32, 32),
    block_size: int = 16,
    dtype: str = "fp16",
    layout: Layout = "NHD",
    lookup: Lookup = "table",
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Spec:
    """A small spec; the test names only what it is about."""
    meaning = (heads, dims, block_size, dtype, layout, lookup, causal, window, soft_cap)
    return Spec(
        name="small",
        archs=("sm_80",),
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dims[0],
        head_dim_v=dims[1],
        dtype_query=dtype,
        dtype_kv=dtype,
        dtype_out=dtype,
        block_size=block_size,
        layout=layout,
        lookup=lookup,
        causal=causal,
        window=window,
        soft_cap=soft_cap,
        kernels=("decode", "prefill"),
        backends=("triton",),
        file_name="small.yaml",
        digest=hashlib.sha256(repr(meaning).encode()).hexdigest(),
    )


def shape_of(spec: Spec) -> Shape:
    """The spec in the words of the shared cases."""
    return Shape(
        num_q_heads=spec.num_q_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_dim_v=spec.head_dim_v,
        block_size=spec.block_size,
        dtype=TORCH[spec.dtype_query],
        csr=spec.lookup == "csr",
        attention=Attention(spec.layout, spec.causal, spec.window, spec.soft_cap),
    )


def plan_of(spec: Spec, kernel: str, variant: str = "", **constants: int) -> Plan:
    """The plan of one variant (default: the first), with some constants replaced."""
    plan = next(
        plan
        for plan in lower(spec)
        if plan.kernel == kernel and plan.backend == "triton" and variant in ("", plan.variant)
    )
    known = {row.name for row in plan.constants}
    assert set(constants) <= known, f"no such constant: {set(constants) - known}"
    rows = (replace(row, value=constants.get(row.name, row.value)) for row in plan.constants)
    return replace(plan, constants=tuple(rows))


@dataclass(frozen=True)
class Result:
    """What one call wrote. `fault` is (0, 0, 0, 0) unless a checked variant found something."""

    out: Tensor
    lse: Tensor
    fault: tuple[int, ...] = (0, 0, 0, 0)


def cache_arguments(plan: Plan, layout: str, k_cache: Tensor, v_cache: Tensor) -> dict[str, Any]:
    """Caches and their strides."""
    arguments: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache}
    token, head = (2, 1) if layout == "HND" else (1, 2)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        arguments[f"{name}_stride_block"] = cache.stride(0)
        arguments[f"{name}_stride_token"] = cache.stride(token)
        arguments[f"{name}_stride_head"] = cache.stride(head)
    return arguments


def lookup_arguments(case: Case) -> dict[str, Any]:
    """The block table and its stride, or indptr and indices."""
    if isinstance(case.lookup, tuple):
        return {"kv_indptr": case.lookup[0], "kv_indices": case.lookup[1]}
    return {"block_table": case.lookup, "block_table_stride_seq": case.lookup.stride(0)}


def poisoned_outputs(plan: Plan, case: Case, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """out and lse full of NaN, so that a row nobody wrote is seen."""
    tokens = case.q.shape[0]
    heads, dim = plan.constant("NUM_Q_HEADS"), plan.constant("HEAD_DIM_V")
    if out is None:
        out = torch.full((tokens, heads, dim), math.nan, dtype=case.q.dtype)
    return out, torch.full((tokens, heads), math.nan)


def run_decode(
    interpreter: Interpreter,
    plan: Plan,
    case: Case,
    layout: str,
    *,
    num_splits: int = 1,
    out: Tensor | None = None,
    write_lse: bool = True,
) -> Result:
    """Decode with a workspace of NaN and checked counters."""
    num_seqs = case.seq_lens.shape[0]
    heads, kv_heads = plan.constant("NUM_Q_HEADS"), plan.constant("NUM_KV_HEADS")
    group_tiles = plan.constant("GROUP_TILES")
    out, lse = poisoned_outputs(plan, case, out)
    arrivals = torch.zeros(num_seqs, kv_heads, group_tiles, dtype=torch.int32)
    fault = torch.zeros(4, dtype=torch.int32)
    states = (num_seqs, num_splits, heads)
    interpreter.launch(
        plan,
        num_seqs * num_splits * group_tiles * kv_heads,
        {
            **cache_arguments(plan, layout, case.k_cache, case.v_cache),
            **lookup_arguments(case),
            "out": out,
            "lse": lse,
            "q": case.q,
            "seq_lens": case.seq_lens,
            "partial_out": torch.full((*states, plan.constant("HEAD_DIM_V")), math.nan),
            "partial_lse": torch.full(states, math.nan),
            "arrivals": arrivals,
            "out_stride_seq": out.stride(0),
            "out_stride_head": out.stride(1),
            "q_stride_seq": case.q.stride(0),
            "q_stride_head": case.q.stride(1),
            "sm_scale": case.sm_scale,
            "num_seqs": num_seqs,
            "num_splits": num_splits,
            "write_lse": int(write_lse),
            "num_blocks": case.k_cache.shape[0],
            "fault": fault,
        },
    )
    assert int(arrivals.abs().sum()) == 0, "arrivals are not zero after the call"
    return Result(out, lse, tuple(fault.tolist()))


def run_prefill(
    interpreter: Interpreter, plan: Plan, case: Case, layout: str, *, out: Tensor | None = None
) -> Result:
    """Prefill over the grid the host would launch."""
    num_seqs, num_tokens = case.seq_lens.shape[0], int(case.cu_seqlens_q[-1])
    num_q_tiles = num_tokens * plan.constant("GROUP") // plan.constant("TILE_M") + num_seqs
    out, lse = poisoned_outputs(plan, case, out)
    fault = torch.zeros(4, dtype=torch.int32)
    interpreter.launch(
        plan,
        num_q_tiles * plan.constant("NUM_KV_HEADS") if num_tokens else 0,
        {
            **cache_arguments(plan, layout, case.k_cache, case.v_cache),
            **lookup_arguments(case),
            "out": out,
            "lse": lse,
            "q": case.q,
            "seq_lens": case.seq_lens,
            "cu_seqlens_q": case.cu_seqlens_q,
            "out_stride_token": out.stride(0),
            "out_stride_head": out.stride(1),
            "q_stride_token": case.q.stride(0),
            "q_stride_head": case.q.stride(1),
            "sm_scale": case.sm_scale,
            "num_seqs": num_seqs,
            "num_q_tiles": num_q_tiles,
            "write_lse": 1,
            "num_blocks": case.k_cache.shape[0],
            "fault": fault,
        },
    )
    return Result(out, lse, tuple(fault.tolist()))
