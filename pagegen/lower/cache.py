"""Plans of the ops that move KV: write_kv and copy_blocks.

Grid of write_kv (x only): ceil(num_tokens / TILE_TOKENS). Grid of copy_blocks: pair * PARTS + part.
"""

from __future__ import annotations

from pagegen.lower.common import cache_constants, frame, head_constants
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec


def lower_write_kv(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant, then the checked one."""
    constants = (
        *head_constants(spec),
        *cache_constants(spec),
        Constant("TILE_TOKENS", 4, "tokens of one thread block"),
    )
    return tuple(
        frame(
            spec, "write_kv", backend, variant, target, constants,
            checked=checked, num_warps=8, num_stages=1, dynamic_smem_bytes=0,
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip


def lower_copy_blocks(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant, then the checked one."""
    constants = (
        *head_constants(spec),
        *cache_constants(spec),
        Constant("PARTS", 4, "thread blocks that copy one block"),
    )
    return tuple(
        frame(
            spec, "copy_blocks", backend, variant, target, constants,
            checked=checked, num_warps=8, num_stages=1, dynamic_smem_bytes=0,
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip
