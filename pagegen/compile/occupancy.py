"""How many blocks of a kernel one multiprocessor holds at a time.

It knows no compiler: it is given figures and a target's limits.
"""

from __future__ import annotations

from typing import Final

from pagegen.archs import Arch

# What the hardware allocates in, the same for every target of archs but for shared memory.
SUB_PARTITIONS: Final = 4  # a warp lives in one quarter of the register file
REGISTER_UNIT: Final = 8  # registers of a thread


def smem_unit_bytes(arch: Arch) -> int:
    """Shared memory is given out in multiples of this."""
    if arch.vendor == "cuda":
        return 128
    return 1280 if arch.name == "gfx950" else 512


def smem_reserved_bytes(arch: Arch) -> int:
    """What the CUDA runtime keeps of each block's shared memory, since sm_80."""
    return 1024 if arch.vendor == "cuda" else 0


def ceil_to(value: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `value`."""
    return -(-value // unit) * unit


def ctas_per_sm(arch: Arch, *, registers: int, smem_bytes: int, num_warps: int) -> int:
    """Resident blocks: the least that warps, registers, shared memory and the slots allow.

    `registers` of one thread, `smem_bytes` of one block, static and dynamic. 0 when one block does
    not fit. Source: NVIDIA's occupancy calculator (cuda_occupancy.h: registers are allocated to
    warps, within a sub-partition); LLVM's AMDGPU back end for the units of gfx9.
    """
    by_warps = arch.max_threads_per_sm // (arch.warp_size * num_warps)
    warp_registers = ceil_to(max(registers, 1), REGISTER_UNIT) * arch.warp_size
    partition_warps = arch.registers_per_sm // SUB_PARTITIONS // warp_registers
    by_registers = partition_warps * SUB_PARTITIONS // num_warps
    block_smem = ceil_to(smem_bytes + smem_reserved_bytes(arch), smem_unit_bytes(arch))
    by_smem = arch.smem_per_sm_bytes // block_smem if block_smem else arch.max_blocks_per_sm
    return min(by_warps, by_registers, by_smem, arch.max_blocks_per_sm)
