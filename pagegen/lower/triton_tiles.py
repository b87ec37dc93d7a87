"""Which tiles the Triton attention kernels use, by head dims, element size and matrix unit.

It knows what was measured and what compilers made of it, not what a kernel does with a tile. No
formula gives Triton's registers: every choice was compiled with all masks, layouts and lookups, and
leaves room where it can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pagegen.archs import arch
from pagegen.dtypes import dtype
from pagegen.spec import Spec

MMA_ROWS = 16  # least rows of a product on matrix units
MAX_DECODE_ROWS = 64

MatrixUnit = Literal["mma", "wgmma", "tcgen05", "mfma"]


@dataclass(frozen=True)
class Tiling:
    """What one variant chooses; tiles count tokens, or rows of Q."""

    variant: str
    tile_m: int
    tile_n: int
    num_warps: int
    num_stages: int
    reason: str
    checked: bool = False
    max_registers: int = 0  # of a thread; 0: no limit

    @property
    def allow_stack(self) -> bool:
        """A limit on registers is worth some spills, and the speed of a checked variant is not."""
        return self.checked or self.max_registers > 0


def power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def padded(dim: int) -> int:
    """A head dim as registers hold it."""
    return max(power_of_two(dim), MMA_ROWS)


def matrix_unit(target: str) -> MatrixUnit:
    """What Triton multiplies tiles with on `target`. sm_90 and sm_90a are the same to it."""
    row = arch(target)
    if row.vendor == "hip":
        return "mfma"
    if row.capability[0] == 9:
        return "wgmma"
    return "tcgen05" if row.capability[0] == 10 else "mma"


def is_fp32(spec: Spec) -> bool:
    """Whether operands are fp32, which no matrix unit takes without rounding them."""
    return dtype(spec.dtype_query).num_bytes == 4


def decode_rows(spec: Spec) -> int:
    """Query heads of one program, padded."""
    return min(max(power_of_two(spec.group), MMA_ROWS), MAX_DECODE_ROWS)


def decode_tilings(spec: Spec, target: str) -> tuple[Tiling, ...]:
    """The default first."""
    rows = decode_rows(spec)
    if is_fp32(spec):
        reason = "fp32 products take no matrix unit: the least tile that Triton multiplies"
        plain = Tiling("default", rows, 16, 8, 2, reason)
        return plain, replace(plain, variant="checked", checked=True)
    wide = max(padded(spec.head_dim), padded(spec.head_dim_v))
    tile_n = min(max(4096 // wide, 16), 64)
    num_warps = min(max(rows * padded(spec.head_dim_v) // 1024, 2), 8)
    staged = 2 if matrix_unit(target) == "mfma" else 4
    plain = Tiling(
        "default", rows, tile_n, num_warps, staged,
        "8 KB of K per step, measured on H200 at head_dim 128: 32 tokens, 2 warps and 4 stages are"
        " within 3 % of the best from 8 sequences on, whole or cut",
    )  # fmt: skip
    checked = replace(
        plain, variant="checked", tile_n=min(tile_n, 32), num_stages=2, checked=True,
        reason="what the checks leave of the registers",
    )  # fmt: skip
    if matrix_unit(target) == "mfma" or rows > MMA_ROWS:
        return plain, checked
    long = Tiling(
        f"n{2 * tile_n}", rows, 2 * tile_n, min(2 * num_warps, 8), 3,
        "fewer, longer steps: measured on H200 at head_dim 128, 3 to 13 % faster for one sequence"
        " cut into many parts, up to 9 % slower for many short ones",
    )  # fmt: skip
    return plain, long, checked


def prefill_tilings(spec: Spec, target: str) -> tuple[Tiling, ...]:
    """The default first."""
    return (*_fast_prefill(spec, matrix_unit(target)), _checked_prefill(spec))


def _fast_prefill(spec: Spec, unit: MatrixUnit) -> tuple[Tiling, ...]:
    """The default, and alternatives."""
    if is_fp32(spec):
        reason = "fp32 products take no matrix unit: the least tile that Triton multiplies"
        return (Tiling("default", 16, 16, 8, 2, reason),)
    wide = max(padded(spec.head_dim), padded(spec.head_dim_v))
    stages = 2 if unit == "mfma" else 3
    if wide <= 64:
        reason = "three programs on a multiprocessor hide each other's softmax"
        return (Tiling("default", 64, 64, 4, stages, reason),)
    if wide > 128:
        return (_wide_prefill(spec, unit),)
    if unit == "wgmma":
        return _hopper_prefill(spec)
    # With TILE_M >= HEAD_DIM_V a warp keeps whole rows, and softmax needs no other warp. Masks, and
    # division by a group that is no power of two, take the registers of longer steps.
    plain = not spec.window and not spec.soft_cap and power_of_two(spec.group) == spec.group
    reason = "rows stay within a warp; longer steps spill"
    return (Tiling("default", 128, 32 if plain else 16, 8, stages, reason),)


def _hopper_prefill(spec: Spec) -> tuple[Tiling, ...]:
    """Head dims to 128 on wgmma."""
    if spec.window:
        reason = "three loops of longer steps spill"
        return (Tiling("default", 64, 32, 4, 3, reason),)
    default = Tiling(
        "default", 128, 64, 8, 2,
        "two programs on a multiprocessor, which 128 registers allow; measured on H200 at"
        " head_dim 128: 455 TFLOP/s for a prompt of 16k, 321 for 16 of 1k",
        max_registers=128,
    )  # fmt: skip
    if spec.block_size > 32:
        return (default,)  # with one block id for a tile, m64 spills
    return (
        default,
        Tiling(
            "m64", 64, 64, 4, 3,
            "measured on H200 at head_dim 128: 462 TFLOP/s for a prompt of 16k and up to 3 % faster"
            " than the default for few queries over long prefixes, but 283 for 16 prompts of 1k",
        ),
    )  # fmt: skip


def _wide_prefill(spec: Spec, unit: MatrixUnit) -> Tiling:
    """Head dims over 128."""
    if padded(spec.head_dim_v) <= 128:
        return Tiling("default", 64, 32, 4, 2, "two programs on a multiprocessor")
    if unit == "wgmma":
        # The three loops of a window take more registers.
        rows = 64 if spec.window else 128
        return Tiling("default", rows, 32, 8, 2, "acc takes half of the registers")
    return Tiling("default", 64, 16, 8, 2, "acc takes half of the registers; longer steps spill")


def _checked_prefill(spec: Spec) -> Tiling:
    """Faults cost registers, and speed does not matter."""
    reason = "what the checks leave of the registers"
    wide = max(padded(spec.head_dim), padded(spec.head_dim_v))
    if is_fp32(spec):
        rows, tile_n, num_warps = 16, 16, 8
    elif wide <= 64:
        rows, tile_n, num_warps = 64, 32, 4
    else:
        rows, tile_n, num_warps = 64, 16 if padded(spec.head_dim_v) > 128 else 32, 8
    return Tiling("checked", rows, tile_n, num_warps, 2, reason, checked=True)
