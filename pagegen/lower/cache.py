"""Plans of the ops that move KV: write_kv and copy_blocks.

Grid of write_kv (x only): ceil(num_tokens / TILE_TOKENS). Grid of copy_blocks: pair * PARTS + part.
It knows how many bytes a thread block should have in flight, and nothing of what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pagegen.dtypes import dtype
from pagegen.lower.common import cache_constants, frame
from pagegen.lower.triton import padded_dims
from pagegen.lower.triton_tiles import power_of_two
from pagegen.plan import Backend, Constant, Plan
from pagegen.spec import Spec

VECTOR_BYTES = 16  # of one load or store
TILE_VECTORS = 1024  # 16 KB: 256 threads of 4 loads, 8 such blocks on an SM
THREAD_VECTORS = 4  # of K and V that a thread of the common shapes holds: 16 registers
MAX_TILE_TOKENS = 16  # a decode batch is still spread over several SMs
MAX_HELD = 4  # vectors of K, and of V, that a thread may hold at once
MAX_THREADS = 512
SLOT_BYTES = 16  # a token's places in the caches of K and V, in shared memory
LINE_VECTORS = 8  # of a cache line of 128 bytes


@dataclass(frozen=True)
class Mover:
    """How one thread block moves a tile of `k` and `v` vectors."""

    k: int
    v: int
    num_warps: int

    @property
    def num_threads(self) -> int:
        return 32 * self.num_warps

    @property
    def items(self) -> tuple[int, int]:
        """Vectors of K and of V that a thread holds at once."""
        needed = (ceil(self.k / self.num_threads), ceil(self.v / self.num_threads))
        return min(needed[0], MAX_HELD), min(needed[1], MAX_HELD)

    @property
    def passes(self) -> int:
        """Times it must fill its hands to move the tile."""
        k_items, v_items = self.items
        return max(
            ceil(self.k / (k_items * self.num_threads)), ceil(self.v / (v_items * self.num_threads))
        )

    def constants(self, vector: int) -> tuple[Constant, ...]:
        """What both CUDA templates name."""
        k_items, v_items = self.items
        held = f"{self.num_threads * (k_items + v_items) * VECTOR_BYTES} bytes in flight per block"
        return (
            Constant("VECTOR", vector, "elements of 16 bytes"),
            Constant("NUM_THREADS", self.num_threads, "threads of a thread block"),
            Constant("K_ITEMS", k_items, "vectors of K that a thread holds at once", held),
            Constant("V_ITEMS", v_items, "vectors of V that a thread holds at once", held),
        )


def vector_elements(spec: Spec) -> int:
    """Elements of the cache in 16 bytes."""
    return VECTOR_BYTES // dtype(spec.dtype_kv).num_bytes


def token_vectors(spec: Spec) -> tuple[int, int]:
    """Vectors of K and of V of one token, all KV heads."""
    vector = vector_elements(spec)
    return (
        spec.num_kv_heads * spec.head_dim // vector,
        spec.num_kv_heads * spec.head_dim_v // vector,
    )


def warps_for(num_vectors: int) -> int:
    """Warps whose threads hold THREAD_VECTORS each, within what one block may have."""
    return min(max(ceil(num_vectors / (32 * THREAD_VECTORS)), 1), MAX_THREADS // 32)


def tile_tokens(spec: Spec) -> int:
    """Tokens of a tile of write_kv: a power of two, about TILE_VECTORS vectors."""
    fitting = max(TILE_VECTORS // sum(token_vectors(spec)), 1)
    return min(1 << (fitting.bit_length() - 1), MAX_TILE_TOKENS)


def write_tile(spec: Spec, tokens: int, num_warps: int = 0) -> Mover:
    """The mover of `tokens` tokens; by default with as many warps as they keep busy."""
    k, v = token_vectors(spec)
    return Mover(tokens * k, tokens * v, num_warps or warps_for(tokens * (k + v)))


def kv_constants(spec: Spec) -> tuple[Constant, ...]:
    """Heads, dims and block size: all that moving KV needs of a spec."""
    return (
        Constant("NUM_KV_HEADS", spec.num_kv_heads, "KV heads"),
        Constant("HEAD_DIM", spec.head_dim, "elements of a key head"),
        Constant("HEAD_DIM_V", spec.head_dim_v, "elements of a value head"),
        *cache_constants(spec),
    )


def write_constants(spec: Spec, tokens: int, mover: Mover) -> tuple[Constant, ...]:
    """What the CUDA template of write_kv names."""
    why = f"{mover.k + mover.v} vectors: {THREAD_VECTORS} loads in flight in each thread, or fewer"
    return (
        *kv_constants(spec),
        Constant("TILE_TOKENS", tokens, "tokens of one thread block", why),
        *mover.constants(vector_elements(spec)),
        Constant("PASSES", mover.passes, "times a thread reads and writes what it can hold"),
    )


def row_steps(spec: Spec) -> tuple[Constant, ...]:
    """How the rows of a block are numbered: as they lie in memory, so that reads run on."""
    heads_inside = spec.layout == "NHD"
    why = f"{spec.layout}: neighbouring threads move neighbouring rows"
    return (
        Constant(
            "TOKEN_ROWS", spec.num_kv_heads if heads_inside else 1, "rows from token to token", why
        ),
        Constant(
            "HEAD_ROWS", 1 if heads_inside else spec.block_size, "rows from head to head", why
        ),
    )


def copy_constants(spec: Spec) -> tuple[tuple[Constant, ...], int]:
    """What the CUDA template of copy_blocks names, and the warps of a part."""
    k, v = (spec.block_size * count for count in token_vectors(spec))
    parts = ceil((k + v) / TILE_VECTORS)
    k_part, v_part = (
        ceil(count / parts / LINE_VECTORS) * LINE_VECTORS if parts > 1 else count
        for count in (k, v)
    )
    needed = max(k_part, v_part) / MAX_HELD  # threads that hold a part in one go
    mover = Mover(k_part, v_part, max(warps_for(k_part + v_part), ceil(needed / 32)))
    assert mover.passes == 1, "a part is about TILE_VECTORS vectors"
    return (
        *kv_constants(spec),
        *row_steps(spec),
        Constant(
            "PARTS", parts, "thread blocks that copy one block",
            f"a single block has {(k + v) * VECTOR_BYTES // 1024} KB: more SMs copy it sooner",
        ),
        Constant("K_PART", k_part, "vectors of K in a part", "whole cache lines"),
        Constant("V_PART", v_part, "vectors of V in a part", "whole cache lines"),
        *mover.constants(vector_elements(spec)),
    ), mover.num_warps  # fmt: skip


def triton_rows(spec: Spec, rows: int, doc: str) -> tuple[tuple[Constant, ...], int]:
    """Constants of a Triton tile of `rows` rows of K and of V or fewer, and its warps."""
    dims = padded_dims(spec)
    row_vectors = sum(int(row.value) for row in dims) // vector_elements(spec)
    most = 2 * MAX_HELD * MAX_THREADS // row_vectors  # rows that registers hold
    padded = min(power_of_two(rows), 1 << (most.bit_length() - 1))
    num_vectors = padded * row_vectors
    return (
        Constant("VECTOR", vector_elements(spec), "elements of 16 bytes; strides are multiples"),
        Constant("TILE_ROWS", padded, doc, "a power of two, as Triton's shapes are"),
        *dims,
    ), power_of_two(warps_for(num_vectors))  # fmt: skip


def _write_plan_parts(spec: Spec, backend: Backend) -> tuple[tuple[Constant, ...], int]:
    """Constants and warps of write_kv."""
    tokens = tile_tokens(spec)
    if backend == "cuda":
        mover = write_tile(spec, tokens)
        return write_constants(spec, tokens, mover), mover.num_warps
    if backend == "triton":
        tile, num_warps = triton_rows(
            spec, tokens * spec.num_kv_heads, "rows (token, head) moved at once"
        )
        size = Constant("TILE_TOKENS", tokens, "tokens of one program", "about 16 KB in flight")
        return (*kv_constants(spec), size, *tile), num_warps
    return cache_constants(spec), 1


def _copy_plan_parts(spec: Spec, backend: Backend) -> tuple[tuple[Constant, ...], int]:
    """Constants and warps of copy_blocks."""
    if backend == "cuda":
        return copy_constants(spec)
    if backend == "triton":
        rows = spec.block_size * spec.num_kv_heads
        parts = ceil(spec.block_size * sum(token_vectors(spec)) / TILE_VECTORS)
        tile, num_warps = triton_rows(spec, ceil(rows / parts), "rows (token, head) of one program")
        parts = ceil(rows / int(tile[1].value))
        size = Constant("PARTS", parts, "programs that copy one block", "about 16 KB in flight")
        return (*kv_constants(spec), *row_steps(spec), size, *tile), num_warps
    return (), 1


def lower_write_kv(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant, then the checked one."""
    constants, num_warps = _write_plan_parts(spec, backend)
    smem_bytes = SLOT_BYTES * tile_tokens(spec) if backend == "cuda" else 0
    return tuple(
        frame(
            spec, "write_kv", backend, variant, target, constants,
            checked=checked, num_warps=num_warps, num_stages=1, dynamic_smem_bytes=smem_bytes,
            allow_stack=checked,  # its speed does not matter
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip


def lower_copy_blocks(spec: Spec, backend: Backend, target: str) -> tuple[Plan, ...]:
    """The default variant, then the checked one."""
    constants, num_warps = _copy_plan_parts(spec, backend)
    return tuple(
        frame(
            spec, "copy_blocks", backend, variant, target, constants,
            checked=checked, num_warps=num_warps, num_stages=1, dynamic_smem_bytes=0,
            allow_stack=checked,  # its speed does not matter
        )
        for variant, checked in (("default", False), ("checked", True))
    )  # fmt: skip
