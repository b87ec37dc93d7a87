"""Plans of merge_states: two attention states over disjoint keys become one.

Grid (x only): ceil(num_tokens * NUM_Q_HEADS / TILE_ROWS), a row being one (token, head).
"""

from __future__ import annotations

from pagegen.lower.common import frame, head_constants
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec


def lower_merge_states(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant, then the checked one."""
    constants = (
        *head_constants(spec),
        Constant("TILE_ROWS", 4, "(token, head) rows of one thread block"),
    )
    return tuple(
        frame(
            spec, "merge_states", backend, variant, target, constants,
            checked=checked, num_warps=4, num_stages=1, dynamic_smem_bytes=0,
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip
