"""Decode plans: one query token per sequence, split over the KV length.

Grid (x only, so that no axis overflows): ((seq * num_splits + split) * GROUP_TILES + tile) *
NUM_KV_HEADS + kv_head, head fastest, so that the heads of one block are read together.
"""

from __future__ import annotations

from pagegen.lower.common import attention_constants, frame
from pagegen.lower.triton_decode import decode_tiles, tilings
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec


def lower_decode(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant first, then alternatives, then the checked one."""
    base = attention_constants(spec, backend)
    if backend == "triton":
        return _triton_plans(spec, target, base)
    plans = []
    for variant, checked in (("default", False), ("checked", True)):
        constants = (
            *base,
            Constant("GROUP_TILE", min(spec.group, 16), "query heads of one thread block"),
            Constant("GROUP_TILES", -(-spec.group // 16), "thread blocks that share a KV head"),
        )
        plans.append(
            frame(
                spec, "decode", backend, variant, target, constants,
                checked=checked, num_warps=4, num_stages=2, dynamic_smem_bytes=0,
            )
        )  # fmt: skip
    return tuple(plans)


def _triton_plans(spec: Spec, target: str, base: tuple[Constant, ...]) -> tuple[Plan, ...]:
    """One plan for each tiling of the Triton kernel."""
    return tuple(
        frame(
            spec, "decode", "triton", tiling.variant, target,
            (*base, *decode_tiles(spec, tiling)),
            checked=tiling.checked, num_warps=tiling.num_warps, num_stages=tiling.num_stages,
            dynamic_smem_bytes=0,
        )
        for tiling in tilings(spec)
    )  # fmt: skip
