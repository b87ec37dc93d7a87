"""Tiles of the Triton attention kernels: what a program holds in registers, and how it finds blocks.

It knows neither grids nor launch arguments: those are each family's, whatever the backend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagegen.dtypes import dtype
from pagegen.plan import Constant
from pagegen.spec import Spec

MMA_ROWS = 16  # least rows of a product on tensor cores
MERGE_REGISTERS = 64  # of each thread, for the partial results in flight while merging


@dataclass(frozen=True)
class Tiling:
    """What one variant chooses; tiles count tokens, or rows of Q."""

    variant: str
    tile_m: int  # 0: as many as the group needs
    tile_n: int
    num_warps: int
    num_stages: int
    checked: bool = False


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def decode_tilings(spec: Spec, target: str) -> tuple[Tiling, ...]:
    """The default first."""
    return (
        Tiling("default", 0, 64, num_warps=4, num_stages=3),
        Tiling("checked", 0, 64, num_warps=4, num_stages=2, checked=True),
    )


def prefill_tilings(spec: Spec, target: str) -> tuple[Tiling, ...]:
    """The default first."""
    return (
        Tiling("default", 128, 64, num_warps=8, num_stages=3),
        Tiling("checked", 64, 64, num_warps=4, num_stages=2, checked=True),
    )


def padded_dims(spec: Spec) -> tuple[Constant, ...]:
    """Head dims as registers hold them."""
    reason = "Triton shapes are powers of two; memory is read up to HEAD_DIM only"
    return tuple(
        Constant(f"{name}_PADDED", max(power_of_two(dim), MMA_ROWS), f"{name} in registers", reason)
        for name, dim in (("HEAD_DIM", spec.head_dim), ("HEAD_DIM_V", spec.head_dim_v))
    )


def lookup_tiles(spec: Spec, tile_n: int) -> tuple[Constant, ...]:
    """How the tokens of a tile share block ids."""
    shared = math.gcd(tile_n, spec.block_size)
    vector = 16 // dtype(spec.dtype_kv).num_bytes
    return (
        Constant("TILE_N", tile_n, "tokens of K and V per step"),
        Constant(
            "ID_TOKENS", shared, "tokens that share a block id", "gcd of TILE_N and BLOCK_SIZE"
        ),
        Constant("TILE_IDS", tile_n // shared, "block ids of a tile"),
        Constant("VECTOR", vector, "elements of 16 bytes; strides are multiples of it"),
    )


def decode_constants(spec: Spec, tiling: Tiling) -> tuple[Constant, ...]:
    """The constants of one decode variant."""
    tile_m = tiling.tile_m or min(max(power_of_two(spec.group), MMA_ROWS), 64)
    group_tile = min(spec.group, tile_m)
    merge_rows = power_of_two(group_tile)
    dims = padded_dims(spec)
    in_flight = MERGE_REGISTERS * 32 * tiling.num_warps
    merge_splits = max(in_flight // (merge_rows * int(dims[1].value)), 1)
    return (
        Constant("GROUP_TILE", group_tile, "query heads of one program"),
        Constant("GROUP_TILES", -(-spec.group // group_tile), "programs that share a KV head"),
        Constant("TILE_M", tile_m, "rows of the matrix product", "GROUP_TILE, at least 16"),
        *lookup_tiles(spec, tiling.tile_n),
        *dims,
        Constant("MIN_SPLIT_TILES", 2, "tiles below which a split is not worth its merge"),
        Constant("MERGE_ROWS", merge_rows, "GROUP_TILE, padded to a power of two"),
        Constant(
            "MERGE_SPLITS", merge_splits, "splits merged per step",
            f"{MERGE_REGISTERS} fp32 values in flight per thread",
        ),
    )  # fmt: skip


def prefill_constants(spec: Spec, tiling: Tiling) -> tuple[Constant, ...]:
    """The constants of one prefill variant."""
    return (
        Constant("TILE_M", tiling.tile_m, "rows (token, head) of a query tile"),
        *lookup_tiles(spec, tiling.tile_n),
        *padded_dims(spec),
    )
