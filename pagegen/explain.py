"""The roofline of a spec: bytes, FLOPs and floor time of a shape, computed and never measured.

It knows no kernel: the floor is what any kernel for the shape must move and multiply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pagegen.dtypes import dtype
from pagegen.errors import SpecError
from pagegen.spec import Spec

DEFAULT_SHAPES = ("decode:1x1024", "decode:64x8192", "prefill:1x16384", "prefill:1x2048+30720")


@dataclass(frozen=True)
class Roof:
    """What a GPU reaches in practice; the defaults were measured on an H200."""

    read_tb_per_s: float = 4.46
    matmul_tflop_per_s: float = 790.0


@dataclass(frozen=True)
class Shape:
    """num_seqs sequences, each of `new` query tokens after `cached` tokens."""

    kernel: str
    num_seqs: int
    new: int
    cached: int


@dataclass(frozen=True)
class Floor:
    """The least work of a shape, and the time it needs on a roof."""

    shape: Shape
    num_bytes: int
    flops: int
    memory_us: float
    compute_us: float

    @property
    def us(self) -> float:
        return max(self.memory_us, self.compute_us)

    @property
    def bound(self) -> str:
        return "memory" if self.memory_us >= self.compute_us else "compute"


def parse_shape(text: str) -> Shape:
    """`decode:64x8192` (64 sequences of 8192 tokens) or `prefill:1x2048+30720` (new + cached)."""
    found = re.fullmatch(r"(decode|prefill):(\d{1,7})x(\d{1,9})(?:\+(\d{1,9}))?", text)
    if not found or int(found[2]) < 1 or int(found[3]) < 1 or (found[1] == "decode" and found[4]):
        raise SpecError(
            f"shape {text!r}",
            allowed="decode:SEQSxCONTEXT or prefill:SEQSxNEW or prefill:SEQSxNEW+CACHED",
            where="--shape",
        )
    count, length, cached = int(found[2]), int(found[3]), int(found[4] or 0)
    if found[1] == "decode":
        return Shape("decode", count, 1, length - 1)
    return Shape("prefill", count, length, cached)


def visible_pairs(spec: Spec, shape: Shape) -> int:
    """(query, key) pairs of one sequence that attention keeps."""
    total = shape.cached + shape.new
    pairs = 0
    if spec.causal:
        first, last = shape.cached + 1, total  # keys that the first and the last query see
        if not spec.window or last <= spec.window:
            return (first + last) * shape.new // 2
        growing = max(0, min(spec.window, last) - first + 1)
        pairs = (first + first + growing - 1) * growing // 2
        return pairs + (shape.new - growing) * spec.window
    return shape.new * total


def floor(spec: Spec, shape: Shape, roof: Roof) -> Floor:
    """Each visible key and value read once, q read and out written once; 2 FLOPs a multiply-add."""
    total = shape.cached + shape.new
    keys = min(total, spec.window + shape.new - 1) if spec.window else total
    dims = spec.head_dim + spec.head_dim_v
    kv_bytes = shape.num_seqs * keys * spec.num_kv_heads * dims * dtype(spec.dtype_kv).num_bytes
    q_rows = shape.num_seqs * shape.new * spec.num_q_heads
    q_bytes = q_rows * spec.head_dim * dtype(spec.dtype_query).num_bytes
    out_bytes = q_rows * spec.head_dim_v * dtype(spec.dtype_out).num_bytes
    flops = 2 * dims * visible_pairs(spec, shape) * spec.num_q_heads * shape.num_seqs
    num_bytes = kv_bytes + q_bytes + out_bytes
    return Floor(
        shape=shape,
        num_bytes=num_bytes,
        flops=flops,
        memory_us=num_bytes / roof.read_tb_per_s / 1e6,
        compute_us=flops / roof.matmul_tflop_per_s / 1e6,
    )
