"""Tiles of the CUDA prefill kernel: rows of a warp, keys of a tile, registers and shared memory.

It knows the kernel's budget of registers and shared bytes, and nothing of its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from pagegen.archs import arch
from pagegen.dtypes import dtype
from pagegen.errors import PlanError
from pagegen.plan import Constant
from pagegen.spec import Spec

CHUNK = 8  # 16-bit elements of a 16-byte copy
ELEMENT_BYTES = 2
LINE = 64  # 16-bit elements of a 128-byte line of shared memory
WORK_BYTES = 128
SOURCE_BYTES = 16  # two pointers of a thread
RESERVED_BYTES = 1024  # shared bytes the driver takes from each block


@dataclass(frozen=True)
class CudaTiles:
    """One variant. A warp owns `warp_rows` rows of the query tile, for all keys."""

    variant: str
    num_warps: int
    warp_rows: int  # 16 or 32: two MMA rows per K or V fragment read from shared memory
    tile_n: int  # keys of a shared-memory stage
    step_n: int  # keys of one softmax step; its scores live in registers
    q_held: int  # MMA steps of q kept in registers, the others are read again for every step
    ctas_per_sm: int
    num_stages: int = 2
    checked: bool = False

    @property
    def tile_m(self) -> int:
        return self.num_warps * self.warp_rows

    def id_rows(self, spec: Spec) -> int:
        """Keys of a tile that share a block id, whatever the tile."""
        return gcd(self.tile_n, spec.block_size)

    def id_slots(self, spec: Spec) -> int:
        """Stages of the ring of block ids: the tile in use, the one in flight, the one after."""
        return 4 if self.num_stages == 2 else 8

    def q_bytes(self, spec: Spec) -> int:
        return self.tile_m * _pitch(spec.head_dim) * ELEMENT_BYTES

    def k_bytes(self, spec: Spec) -> int:
        return self.tile_n * _pitch(spec.head_dim) * ELEMENT_BYTES

    def v_bytes(self, spec: Spec) -> int:
        return self.tile_n * _pitch(spec.head_dim_v) * ELEMENT_BYTES

    def lanes(self, head_dim: int) -> int:
        """Threads side by side on a row: at most a line of it, half a line if that leaves none
        idle, and so many that a pass of all threads fits in the tile."""
        chunks = head_dim // CHUNK
        divisor = chunks & -chunks
        lanes = divisor if divisor == 4 else min(1 << (chunks - 1).bit_length(), LINE // CHUNK)
        return max(lanes, 32 * self.num_warps // self.tile_n)

    def offsets(self, spec: Spec) -> tuple[int, int, int, int, int, int]:
        """Bytes from the start of shared memory to K, V, sources, block ids and work, the end."""
        k_offset = self.q_bytes(spec)
        v_offset = k_offset + self.num_stages * self.k_bytes(spec)
        out_bytes = self.tile_m * _pitch(spec.head_dim_v) * ELEMENT_BYTES  # staged at the end
        sources_offset = max(v_offset + self.num_stages * self.v_bytes(spec), out_bytes)
        ids_offset = sources_offset + 32 * self.num_warps * SOURCE_BYTES
        ids_bytes = 4 * self.id_slots(spec) * (self.tile_n // self.id_rows(spec))
        work_offset = ids_offset + ids_bytes
        end = work_offset + WORK_BYTES
        return k_offset, v_offset, sources_offset, ids_offset, work_offset, end

    def smem_bytes(self, spec: Spec) -> int:
        """Dynamic shared memory of a block."""
        return self.offsets(spec)[-1]

    def constants(self, spec: Spec) -> tuple[Constant, ...]:
        """What the template names."""
        k_offset, v_offset, sources_offset, ids_offset, work_offset, _ = self.offsets(spec)
        return (
            Constant("TILE_M", self.tile_m, "rows (token, head) of a query tile"),
            Constant("TILE_N", self.tile_n, "keys of a tile"),
            Constant("STEP_N", self.step_n, "keys of one softmax step"),
            Constant("MASKED_STEP_N", min(self.step_n, 32), "the same where keys are masked"),
            Constant("NUM_STAGES", self.num_stages, "tiles of K and V in shared memory"),
            Constant("WARP_ROWS", self.warp_rows, "rows of a warp"),
            Constant("Q_HELD", self.q_held, "MMA steps of q held in registers"),
            Constant("CTAS_PER_SM", self.ctas_per_sm, "thread blocks of an SM"),
            Constant("NUM_THREADS", 32 * self.num_warps, "threads of a thread block"),
            Constant("ID_ROWS", self.id_rows(spec), "keys of a tile that share a block id"),
            Constant("ID_STAGES", self.id_slots(spec), "tiles whose block ids are held"),
            Constant("K_PITCH", _pitch(spec.head_dim), "elements between rows of q and K"),
            Constant("V_PITCH", _pitch(spec.head_dim_v), "elements between rows of V and out"),
            Constant("K_LANES", self.lanes(spec.head_dim), "threads that copy a row of q or K"),
            Constant("V_LANES", self.lanes(spec.head_dim_v), "threads that copy a row of V or out"),
            Constant("K_OFFSET", k_offset, "bytes before K in shared memory"),
            Constant("V_OFFSET", v_offset, "bytes before V in shared memory"),
            Constant("SOURCES_OFFSET", sources_offset, "bytes before the threads' sources"),
            Constant("IDS_OFFSET", ids_offset, "bytes before the block ids in shared memory"),
            Constant("WORK_OFFSET", work_offset, "bytes before the work in shared memory"),
        )


def _pitch(head_dim: int) -> int:
    """Elements between rows: whole lines of 128 bytes, within which chunks are swizzled by row."""
    return -(-head_dim // LINE) * LINE


def cuda_tiles(spec: Spec, target: str) -> tuple[CudaTiles, ...]:
    """The default variant first, then the checked one. Raises PlanError."""
    where = f"{spec.name}: cuda prefill"
    for field in (spec.dtype_query, spec.dtype_kv, spec.dtype_out):
        if dtype(field).num_bytes != ELEMENT_BYTES or field != spec.dtype_query:
            raise PlanError(
                f"dtypes {spec.dtype_query}, {spec.dtype_kv}, {spec.dtype_out}",
                allowed="query, kv and out all bf16 or all fp16",
                remedy="use the triton backend, or store KV in the query's dtype",
                where=where,
            )
    default = _fitting(spec, target, _candidates(spec))
    checked = _fitting(spec, target, _checked(spec))
    return (default, checked)


def _fitting(spec: Spec, target: str, candidates: tuple[CudaTiles, ...]) -> CudaTiles:
    limit = arch(target).smem_per_sm_bytes
    for row in candidates:
        if row.ctas_per_sm * (row.smem_bytes(spec) + RESERVED_BYTES) <= limit:
            return row
    raise PlanError(
        f"head_dim {spec.head_dim} and {spec.head_dim_v} on {target}",
        allowed=f"tiles within {limit} bytes of shared memory",
        where=f"{spec.name}: cuda prefill",
    )


def _candidates(spec: Spec) -> tuple[CudaTiles, ...]:
    """Best first. The output takes WARP_ROWS * HEAD_DIM_V / 32 registers of a thread's 255."""
    if spec.head_dim_v > 128:
        return (
            CudaTiles("default", 8, 16, 64, 64, 0, 1),
            CudaTiles("default", 8, 16, 32, 32, 0, 1),
            CudaTiles("default", 4, 16, 32, 32, 0, 1),
            CudaTiles("default", 4, 16, 16, 16, 0, 1),
        )
    # A soft cap needs registers of its own: a step of 64 keys spills 8 bytes at head_dim_v 128.
    step_n = 32 if spec.soft_cap else 64
    return tuple(
        CudaTiles("default", 4, 32, tile_n, min(tile_n, step_n), 0, ctas_per_sm)
        for ctas_per_sm in (2, 1)
        for tile_n in (64, 32)
    )


def _checked(spec: Spec) -> tuple[CudaTiles, ...]:
    """Small tiles: the checks need registers, and speed is not the point."""
    return tuple(
        CudaTiles("checked", num_warps, 16, tile_n, min(tile_n, 32), 0, 1, checked=True)
        for num_warps, tile_n in ((8, 64), (8, 32), (4, 32), (4, 16))
    )
