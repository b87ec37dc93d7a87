"""Tiles of the CUDA decode kernel: warps, stages and pitches that keep memory busy on one SM.

It knows the kernel's appetite for registers and shared memory, and nothing of its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from pagegen.archs import Arch, arch
from pagegen.dtypes import dtype
from pagegen.errors import PlanError
from pagegen.plan import Constant
from pagegen.spec import Spec

CHUNK_BYTES = 16  # of one asynchronous copy
CHUNK = 8  # 16-bit elements of a chunk
LINE = 8  # chunks of the 128 bytes that shared memory moves at once
RESERVED_BYTES = 1024  # shared memory the driver takes from each block
OTHER_REGISTERS = 56  # of a thread, beside queries and output
MAX_REGISTERS = 232  # of a thread by this count, which other features may exceed by some 20


def pitch(head_dim: int) -> int:
    """Chunks of a row in shared memory: whole lines, or half a line where that is enough."""
    chunks = head_dim // CHUNK
    return LINE // 2 if chunks <= LINE // 2 else -(-chunks // LINE) * LINE


def even_tiles(group: int, limit: int) -> tuple[int, int]:
    """(heads of a block, blocks of a KV head), as even as whole heads allow."""
    tiles = -(-group // limit)
    return -(-group // tiles), tiles


@dataclass(frozen=True)
class DecodeTiles:
    """One variant. A warp's tile is `tile` tokens of K and of V, `stages` of them in flight."""

    num_warps: int
    stages: int
    ctas_per_sm: int
    tile: int = 16
    min_split_tokens: int = 128
    merge_batch: int = 8

    def smem_bytes(self, spec: Spec) -> int:
        """Dynamic shared memory of a block: a ring for each warp."""
        chunks = pitch(spec.head_dim) + pitch(spec.head_dim_v)
        return self.num_warps * self.stages * self.tile * chunks * CHUNK_BYTES

    def tile_in_block(self, spec: Spec) -> bool:
        """Whether one block id serves a whole tile."""
        return spec.block_size % self.tile == 0

    def constants(self, spec: Spec) -> tuple[Constant, ...]:
        """What the template names."""
        group_tile, group_tiles = even_tiles(spec.group, head_limit(spec))
        lines = "whole lines of 8, or half of one: a copy across two lines is two requests to L2"
        rows = self.ctas_per_sm * self.num_warps * self.stages * self.tile
        flight = rows * (spec.head_dim + spec.head_dim_v) * 2 // 1024
        busy = f"{flight} KB in flight on an SM; 64 to 100 saturate it"
        return (
            Constant("GROUP_TILE", group_tile, "query heads of one thread block"),
            Constant("GROUP_TILES", group_tiles, "thread blocks that share a KV head"),
            Constant("TILE", self.tile, "tokens of a warp's tile", "one mma of scores has 16 rows"),
            Constant("STAGES", self.stages, "tiles of K and V in a warp's ring", busy),
            Constant("NUM_WARPS", self.num_warps, "warps of a thread block", busy),
            Constant("NUM_THREADS", 32 * self.num_warps, "threads of a thread block"),
            Constant(
                "CTAS_PER_SM", self.ctas_per_sm, "thread blocks resident on an SM",
                "one block's prologue and merge hide behind the others' copies",
            ),
            Constant("K_PITCH", pitch(spec.head_dim), "16-byte chunks between K rows", lines),
            Constant("V_PITCH", pitch(spec.head_dim_v), "16-byte chunks between V rows", lines),
            Constant(
                "ID_ROWS", gcd(self.tile, spec.block_size), "tokens of a tile that share an id",
                "gcd of TILE and BLOCK_SIZE",
            ),
            Constant(
                "MIN_SPLIT_TOKENS", self.min_split_tokens, "tokens below which a part is not cut",
                "all tiles of such a part are in flight at once, so cutting it saves no latency",
            ),
            Constant(
                "MERGE_BATCH", self.merge_batch, "parts whose partial results are read together",
                "registers hold them; the latency of a read is what merging costs",
            ),
        )  # fmt: skip


def head_limit(spec: Spec) -> int:
    """Query heads one block can take: two mma columns of 8 if registers hold their output."""
    return 16 if registers(spec, 2) <= MAX_REGISTERS else 8


def registers(spec: Spec, head_tiles: int) -> int:
    """Estimate for one thread: output, queries, and the rest."""
    out = -(-spec.head_dim_v // 16) * head_tiles * 4
    query = -(-spec.head_dim // 16) * head_tiles * 2
    return out + query + OTHER_REGISTERS


def cuda_tiles(spec: Spec, target: str) -> DecodeTiles:
    """The best candidate `target` can hold. Raises PlanError."""
    where = f"{spec.name}: cuda decode"
    if spec.dtype_kv not in ("bf16", "fp16") or spec.dtype_query != spec.dtype_kv:
        raise PlanError(
            f"dtypes {spec.dtype_query} and {spec.dtype_kv}",
            allowed="query and kv both bf16 or both fp16",
            remedy="use the triton backend, or store KV in the query's dtype",
            where=where,
        )
    if dtype(spec.dtype_out).num_bytes < 2:
        raise PlanError(f"out dtype {spec.dtype_out}", allowed="bf16, fp16, fp32", where=where)
    for row in _candidates():
        if _fits(row, spec, arch(target)):
            return row
    raise PlanError(
        f"head_dim {spec.head_dim} and {spec.head_dim_v} on {target}",
        allowed=f"rings within {arch(target).smem_per_sm_bytes} bytes of shared memory",
        where=where,
    )


def _fits(row: DecodeTiles, spec: Spec, target: Arch) -> bool:
    smem = row.ctas_per_sm * (row.smem_bytes(spec) + RESERVED_BYTES)
    group_tile, _ = even_tiles(spec.group, head_limit(spec))
    needed = registers(spec, -(-group_tile // 8))
    available = target.registers_per_sm // (row.ctas_per_sm * 32 * row.num_warps)
    return smem <= target.smem_per_sm_bytes and needed <= min(available, 255)


def _candidates() -> tuple[DecodeTiles, ...]:
    """Best first: three blocks of four warps, then less of each."""
    return (
        DecodeTiles(num_warps=4, stages=4, ctas_per_sm=3),
        DecodeTiles(num_warps=4, stages=3, ctas_per_sm=3),
        DecodeTiles(num_warps=4, stages=2, ctas_per_sm=3),
        DecodeTiles(num_warps=2, stages=2, ctas_per_sm=3),
        DecodeTiles(num_warps=4, stages=2, ctas_per_sm=2),
        DecodeTiles(num_warps=2, stages=2, ctas_per_sm=2),
        DecodeTiles(num_warps=2, stages=2, ctas_per_sm=1),
    )
