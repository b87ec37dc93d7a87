"""Tiles of the Triton decode kernel.

It knows the shape of one program's work; grid and launch arguments are the family's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagegen.dtypes import dtype
from pagegen.plan import Constant
from pagegen.spec import Spec

MMA_ROWS = 16  # least rows of a matrix product on tensor cores
MERGE_ELEMENTS = 8192  # fp32 partial results in registers while merging: 64 of each of 128 threads


@dataclass(frozen=True)
class Tiling:
    """What one variant chooses."""

    variant: str
    checked: bool
    tile_n: int  # tokens
    num_warps: int
    num_stages: int


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def tilings(spec: Spec) -> tuple[Tiling, ...]:
    """The default first."""
    return (
        Tiling("default", checked=False, tile_n=64, num_warps=4, num_stages=3),
        Tiling("checked", checked=True, tile_n=64, num_warps=4, num_stages=2),
    )


def padded_dims(spec: Spec) -> tuple[Constant, ...]:
    """Head dims as registers hold them."""
    reason = "Triton shapes are powers of two"
    return (
        Constant(
            "HEAD_DIM_PADDED", max(power_of_two(spec.head_dim), 16), "HEAD_DIM in registers", reason
        ),
        Constant(
            "HEAD_DIM_V_PADDED",
            max(power_of_two(spec.head_dim_v), 16),
            "HEAD_DIM_V in registers",
            reason,
        ),
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


def decode_tiles(spec: Spec, tiling: Tiling) -> tuple[Constant, ...]:
    """The constants of one variant."""
    tile_m = min(max(power_of_two(spec.group), MMA_ROWS), 64)
    group_tile = min(spec.group, tile_m)
    merge_rows = power_of_two(group_tile)
    dims = padded_dims(spec)
    row_elements = merge_rows * int(dims[1].value)
    return (
        Constant("GROUP_TILE", group_tile, "query heads of one program"),
        Constant("GROUP_TILES", -(-spec.group // group_tile), "programs that share a KV head"),
        Constant("TILE_M", tile_m, "rows of the matrix product", "GROUP_TILE, at least 16"),
        *lookup_tiles(spec, tiling.tile_n),
        *dims,
        Constant("MIN_SPLIT_TILES", 2, "tiles below which a split is not worth its merge"),
        Constant("MERGE_ROWS", merge_rows, "GROUP_TILE, padded to a power of two"),
        Constant(
            "MERGE_SPLITS", max(MERGE_ELEMENTS // row_elements, 1), "splits merged per step",
            f"{MERGE_ELEMENTS} fp32 values in flight",
        ),
    )  # fmt: skip
