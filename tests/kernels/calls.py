"""Calls decode and prefill kernels as a host does, on CPU tensors.

It knows launch arguments and grids, and nothing of what a kernel does inside. Results are NaN
before a call, scratch lies between guard bands, and both are looked at after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pagegen.cases import Case
from pagegen.plan import Plan
from tests.kernels.grids import decode_grid, prefill_grid, query_tiles
from tests.kernels.kernels import Kernels

GUARD = -7.0
GUARD_ELEMENTS = 64


@dataclass(frozen=True)
class Result:
    """What one call wrote. `fault` is (0, 0, 0, 0) unless a checked variant found something."""

    out: Tensor
    lse: Tensor
    fault: tuple[int, ...] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Scratch:
    """A decode call's workspace: three views of one tensor, with a guard band round each."""

    memory: Tensor
    arrivals: Tensor  # zero before and after
    partial_lse: Tensor
    partial_out: Tensor

    @classmethod
    def new(cls, plan: Plan, num_seqs: int, num_splits: int) -> Scratch:
        """As much as the parameters' shapes say, NaN but for the counters."""
        states = (num_seqs, num_splits, plan.constant("NUM_Q_HEADS"))
        counters = (num_seqs, plan.constant("NUM_KV_HEADS"), plan.constant("GROUP_TILES"))
        shapes = (counters, states, (*states, plan.constant("HEAD_DIM_V")))
        sizes = [-(-math.prod(shape) // GUARD_ELEMENTS) * GUARD_ELEMENTS for shape in shapes]
        memory = torch.full((sum(sizes) + GUARD_ELEMENTS * (1 + len(sizes)),), GUARD)
        views = []
        first = GUARD_ELEMENTS
        for shape, size in zip(shapes, sizes, strict=True):
            views.append(memory[first : first + math.prod(shape)].view(shape))
            first += size + GUARD_ELEMENTS
        views[0].zero_()
        for view in views[1:]:
            view.fill_(math.nan)
        return cls(memory, views[0].view(torch.int32), views[1], views[2])

    def check(self) -> None:
        """Fail unless the counters are zero again and the guard bands are as they were."""
        assert not bool(self.arrivals.any()), "arrivals are not zero after the call"
        for view in (self.arrivals.view(torch.float32), self.partial_lse, self.partial_out):
            view.fill_(GUARD)
        assert bool((self.memory == GUARD).all()), "scratch was written past its end"


def cache_arguments(layout: str, k_cache: Tensor, v_cache: Tensor) -> dict[str, Tensor | int]:
    """Caches and their strides."""
    arguments: dict[str, Tensor | int] = {"k_cache": k_cache, "v_cache": v_cache}
    token, head = (2, 1) if layout == "HND" else (1, 2)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        arguments[f"{name}_stride_block"] = cache.stride(0)
        arguments[f"{name}_stride_token"] = cache.stride(token)
        arguments[f"{name}_stride_head"] = cache.stride(head)
    return arguments


def row_strides(name: str, tensor: Tensor, row: str = "token") -> dict[str, int]:
    """Launch arguments of a [row, head, ..] tensor."""
    return {f"{name}_stride_{row}": tensor.stride(0), f"{name}_stride_head": tensor.stride(1)}


def lookup_arguments(case: Case) -> dict[str, Tensor | int]:
    """The block table and its stride, or indptr and indices."""
    if isinstance(case.lookup, tuple):
        return {"kv_indptr": case.lookup[0], "kv_indices": case.lookup[1]}
    return {"block_table": case.lookup, "block_table_stride_seq": case.lookup.stride(0)}


def shared_arguments(case: Case, layout: str) -> dict[str, Tensor | int | float]:
    """What decode and prefill both take, but for their results."""
    return {
        **cache_arguments(layout, case.k_cache, case.v_cache),
        **lookup_arguments(case),
        "q": case.q,
        "seq_lens": case.seq_lens,
        "sm_scale": case.sm_scale,
        "num_seqs": case.seq_lens.shape[0],
        "num_blocks": case.k_cache.shape[0],
    }


def poisoned_results(plan: Plan, case: Case, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """out and lse full of NaN, so that a row nobody wrote is seen."""
    rows = (case.q.shape[0], plan.constant("NUM_Q_HEADS"))
    if out is None:
        out = torch.full((*rows, plan.constant("HEAD_DIM_V")), math.nan, dtype=case.q.dtype)
    return out, torch.full(rows, math.nan)


def run_decode(
    kernels: Kernels,
    plan: Plan,
    case: Case,
    layout: str,
    *,
    num_splits: int = 1,
    out: Tensor | None = None,
    write_lse: bool = True,
) -> Result:
    """Decode into at most `num_splits` parts."""
    num_seqs = case.seq_lens.shape[0]
    out, lse = poisoned_results(plan, case, out)
    scratch = Scratch.new(plan, num_seqs, num_splits)
    fault = torch.zeros(4, dtype=torch.int32)
    kernels.launch(
        plan,
        decode_grid(plan, num_seqs, num_splits),
        {
            **shared_arguments(case, layout),
            "out": out,
            "lse": lse,
            "partial_out": scratch.partial_out,
            "partial_lse": scratch.partial_lse,
            "arrivals": scratch.arrivals,
            **row_strides("out", out, "seq"),
            **row_strides("q", case.q, "seq"),
            "num_splits": num_splits,
            "write_lse": int(write_lse),
            "fault": fault,
        },
    )
    scratch.check()
    return Result(out, lse, tuple(fault.tolist()))


def run_prefill(
    kernels: Kernels, plan: Plan, case: Case, layout: str, *, out: Tensor | None = None
) -> Result:
    """Prefill over the grid that a host would launch, which sees the rows of q only."""
    num_tokens, num_seqs = case.q.shape[0], case.seq_lens.shape[0]
    out, lse = poisoned_results(plan, case, out)
    fault = torch.zeros(4, dtype=torch.int32)
    kernels.launch(
        plan,
        prefill_grid(plan, num_tokens, num_seqs),
        {
            **shared_arguments(case, layout),
            "out": out,
            "lse": lse,
            "cu_seqlens_q": case.cu_seqlens_q,
            **row_strides("out", out),
            **row_strides("q", case.q),
            "num_q_tiles": query_tiles(plan, num_tokens, num_seqs),
            "write_lse": 1,
            "fault": fault,
        },
    )
    return Result(out, lse, tuple(fault.tolist()))
