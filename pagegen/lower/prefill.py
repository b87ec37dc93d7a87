"""Prefill plans: ragged queries over a cached prefix, causal aligned to the end.

Rows of a query tile are (token, head of the group) pairs, flattened: row = token * GROUP + head, so
no group size wastes a row. Grid (x only): q_tile * NUM_KV_HEADS + kv_head, num_q_tiles =
num_tokens * GROUP // TILE_M + num_seqs; sequence i owns the tiles from cu_seqlens_q[i] * GROUP //
TILE_M + i on, and those past its own count return at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagegen.lower.common import attention_constants, frame, torch_constants
from pagegen.lower.prefill_cuda import cuda_tiles
from pagegen.lower.triton import prefill_constants
from pagegen.lower.triton_tiles import prefill_tilings
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec


@dataclass(frozen=True)
class Tiles:
    """The numbers of one variant that are this family's own."""

    variant: str
    constants: tuple[Constant, ...]  # TILE_M, TILE_N and what else the backend's template names
    num_warps: int
    num_stages: int
    dynamic_smem_bytes: int
    checked: bool = False
    max_registers: int = 0  # of a thread; 0: no limit
    allow_stack: bool = False


def lower_prefill(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant first, then alternatives, then the checked one."""
    tiles = {"cuda": _cuda_tiles, "triton": _triton_tiles, "torch": _torch_tiles}[backend]
    base = attention_constants(spec, backend)
    return tuple(
        replace(
            frame(
                spec, "prefill", backend, row.variant, target, (*base, *row.constants),
                checked=row.checked, num_warps=row.num_warps, num_stages=row.num_stages,
                dynamic_smem_bytes=row.dynamic_smem_bytes, allow_stack=row.allow_stack,
            ),
            max_registers=row.max_registers,
        )
        for row in tiles(spec, target)
    )  # fmt: skip


def _cuda_tiles(spec: Spec, target: str) -> tuple[Tiles, ...]:
    return tuple(
        Tiles(
            row.variant, row.constants(spec), row.num_warps, row.num_stages,
            row.smem_bytes(spec), row.checked,
        )
        for row in cuda_tiles(spec, target)
    )  # fmt: skip


def _triton_tiles(spec: Spec, target: str) -> tuple[Tiles, ...]:
    return tuple(
        Tiles(
            row.variant, prefill_constants(spec, row), row.num_warps, row.num_stages, 0,
            row.checked, row.max_registers, row.allow_stack,
        )
        for row in prefill_tilings(spec, target)
    )  # fmt: skip


def _torch_tiles(spec: Spec, target: str) -> tuple[Tiles, ...]:
    bounds = torch_constants()
    return (Tiles("default", bounds, 1, 1, 0), Tiles("checked", bounds, 1, 1, 0, checked=True))
