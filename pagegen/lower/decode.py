"""Decode plans: one query token per sequence, split over the KV length.

Grid (x only, so that no axis overflows): ((seq * num_splits + split) * GROUP_TILES + tile) *
NUM_KV_HEADS + kv_head, head fastest, so that the heads of one block are read together.
"""

from __future__ import annotations

from dataclasses import replace

from pagegen.lower.common import attention_constants, frame, torch_constants
from pagegen.lower.decode_cuda import cuda_tiles
from pagegen.lower.triton import decode_constants
from pagegen.lower.triton_tiles import decode_tilings
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec


def lower_decode(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant first, then alternatives, then the checked one."""
    base = attention_constants(spec, backend)
    if backend == "triton":
        return _triton_plans(spec, target, base)
    if backend == "cuda":
        return _cuda_plans(spec, target, base)
    return tuple(
        frame(
            spec, "decode", backend, variant, target, (*base, *torch_constants()),
            checked=checked, num_warps=4, num_stages=1, dynamic_smem_bytes=0,
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip


def _cuda_plans(spec: Spec, target: str, base: tuple[Constant, ...]) -> tuple[Plan, ...]:
    """The default variant, then the checked one, of the same tiles."""
    tiles = cuda_tiles(spec, target)
    return tuple(
        replace(
            frame(
                spec, "decode", "cuda", variant, target, (*base, *tiles.constants(spec)),
                checked=checked, num_warps=tiles.num_warps, num_stages=tiles.stages,
                dynamic_smem_bytes=tiles.smem_bytes(spec),
            ),
            tile_in_block=tiles.tile_in_block(spec),
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip


def _triton_plans(spec: Spec, target: str, base: tuple[Constant, ...]) -> tuple[Plan, ...]:
    """One plan for each tiling of the Triton kernel."""
    return tuple(
        frame(
            spec, "decode", "triton", tiling.variant, target,
            (*base, *decode_constants(spec, tiling)),
            checked=tiling.checked, num_warps=tiling.num_warps, num_stages=tiling.num_stages,
            dynamic_smem_bytes=0, allow_stack=tiling.allow_stack,
        )
        for tiling in decode_tilings(spec, target)
    )  # fmt: skip
