"""Plans of merge_states: two attention states over disjoint keys become one.

Grid (x only): ceil(num_tokens * NUM_Q_HEADS / TILE_ROWS), a row being one (token, head).
"""

from __future__ import annotations

from math import ceil

from pagegen.dtypes import dtype
from pagegen.lower.common import frame
from pagegen.lower.triton_tiles import power_of_two
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec

NUM_WARPS = 8
TILE_ELEMENTS = 2048  # of a Triton program: 8 of each of 256 threads, from either side


def merge_constants(spec: Spec, backend: Backend) -> tuple[Constant, ...]:
    """What the backend's template names."""
    vector = 16 // dtype(spec.dtype_out).num_bytes
    row_vectors = spec.head_dim_v // vector
    base = (
        Constant("NUM_Q_HEADS", spec.num_q_heads, "query heads"),
        Constant("HEAD_DIM_V", spec.head_dim_v, "elements of a row"),
    )
    if backend == "torch":
        return ()
    if backend == "triton":
        padded = power_of_two(spec.head_dim_v)
        rows = max(TILE_ELEMENTS // padded, 1)
        return (
            *base,
            Constant("HEAD_DIM_V_PADDED", padded, "HEAD_DIM_V in registers"),
            Constant("TILE_ROWS", rows, "(token, head) rows of one program"),
            Constant("VECTOR", vector, "elements of 16 bytes; strides are multiples of it"),
        )
    lanes = min(power_of_two(row_vectors), 32)
    return (
        *base,
        Constant("VECTOR", vector, "elements of 16 bytes"),
        Constant("LANES", lanes, "threads of a row, all of one warp", "reads come before writes"),
        Constant("LANE_VECTORS", ceil(row_vectors / lanes), "vectors of a row that a thread takes"),
        Constant("TILE_ROWS", 32 * NUM_WARPS // lanes, "(token, head) rows of one thread block"),
        Constant("NUM_THREADS", 32 * NUM_WARPS, "threads of a thread block"),
    )


def lower_merge_states(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant, then the checked one."""
    constants = merge_constants(spec, backend)
    return tuple(
        frame(
            spec, "merge_states", backend, variant, target, constants,
            checked=checked, num_warps=NUM_WARPS, num_stages=1, dynamic_smem_bytes=0,
            allow_stack=checked,  # its speed does not matter
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip
