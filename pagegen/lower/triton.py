"""Constants of the Triton attention kernels: what a program holds, and how it finds blocks.

It knows neither grids nor launch arguments: those are each family's, whatever the backend.
"""

from __future__ import annotations

import math

from pagegen.dtypes import dtype
from pagegen.lower.triton_tiles import Tiling, padded, power_of_two
from pagegen.plan import Constant
from pagegen.spec import Spec

MERGE_REGISTERS = 64  # of each thread, for the partial results in flight while merging
MIN_SPLIT_TOKENS = 64


def padded_dims(spec: Spec) -> tuple[Constant, ...]:
    """Head dims as registers hold them."""
    reason = "Triton shapes are powers of two; memory is read up to HEAD_DIM only"
    return tuple(
        Constant(f"{name}_PADDED", padded(dim), f"{name} in registers", reason)
        for name, dim in (("HEAD_DIM", spec.head_dim), ("HEAD_DIM_V", spec.head_dim_v))
    )


def lookup_tiles(spec: Spec, tiling: Tiling) -> tuple[Constant, ...]:
    """How the tokens of a tile share block ids."""
    shared = math.gcd(tiling.tile_n, spec.block_size)
    vector = 16 // dtype(spec.dtype_kv).num_bytes
    return (
        Constant("TILE_N", tiling.tile_n, "tokens of K and V per step", tiling.reason),
        Constant(
            "ID_TOKENS", shared, "tokens that share a block id", "gcd of TILE_N and BLOCK_SIZE"
        ),
        Constant("TILE_IDS", tiling.tile_n // shared, "block ids of a tile"),
        Constant("VECTOR", vector, "elements of 16 bytes; strides are multiples of it"),
    )


def decode_constants(spec: Spec, tiling: Tiling) -> tuple[Constant, ...]:
    """The constants of one decode variant."""
    group_tile = min(spec.group, tiling.tile_m)
    merge_rows = power_of_two(group_tile)
    in_flight = MERGE_REGISTERS * 32 * tiling.num_warps
    merge_splits = max(in_flight // (merge_rows * padded(spec.head_dim_v)), 1)
    return (
        Constant("GROUP_TILE", group_tile, "query heads of one program"),
        Constant("GROUP_TILES", -(-spec.group // group_tile), "programs that share a KV head"),
        Constant("TILE_M", tiling.tile_m, "rows of the matrix product", "GROUP_TILE, at least 16"),
        *lookup_tiles(spec, tiling),
        *padded_dims(spec),
        Constant(
            "MIN_SPLIT_TILES", max(MIN_SPLIT_TOKENS // tiling.tile_n, 1),
            "tiles below which a split is not worth its merge",
            f"{MIN_SPLIT_TOKENS} tokens: measured on H200, 1024 tokens are best cut into 16",
        ),
        Constant("MERGE_ROWS", merge_rows, "GROUP_TILE, padded to a power of two"),
        Constant(
            "MERGE_SPLITS", merge_splits, "splits merged per step",
            f"{MERGE_REGISTERS} fp32 values in flight per thread",
        ),
    )  # fmt: skip


def prefill_constants(spec: Spec, tiling: Tiling) -> tuple[Constant, ...]:
    """The constants of one prefill variant."""
    return (
        Constant("TILE_M", tiling.tile_m, "rows (token, head) of a query tile", tiling.reason),
        *lookup_tiles(spec, tiling),
        *padded_dims(spec),
    )
