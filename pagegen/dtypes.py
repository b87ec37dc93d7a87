"""One row per element type: its size and what Triton, CUDA and torch call it.

It knows nothing of targets: whether an arch can use a type is asked in archs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagegen.errors import SpecError


@dataclass(frozen=True)
class DType:
    """An element type. `cuda` names the storage type that emitted CUDA declares for it."""

    name: str
    num_bytes: int
    triton: str  # in a Triton signature: "*bf16"
    triton_tl: str  # in Triton code: tl.bfloat16
    cuda: str  # in emitted CUDA: bf16_t
    torch: str  # attribute of torch
    is_float8: bool = False


DTYPES: Final[tuple[DType, ...]] = (
    DType("bf16", 2, "bf16", "tl.bfloat16", "bf16_t", "bfloat16"),
    DType("fp16", 2, "fp16", "tl.float16", "fp16_t", "float16"),
    DType("fp32", 4, "fp32", "tl.float32", "float", "float32"),
    DType("fp8_e4m3", 1, "fp8e4nv", "tl.float8e4nv", "e4m3_t", "float8_e4m3fn", is_float8=True),
    DType("fp8_e5m2", 1, "fp8e5", "tl.float8e5", "e5m2_t", "float8_e5m2", is_float8=True),
    DType("int8", 1, "i8", "tl.int8", "int8_t", "int8"),
)


def dtype(name: str) -> DType:
    """The row called `name`. Raises SpecError listing the known names."""
    for row in DTYPES:
        if row.name == name:
            return row
    raise SpecError(
        f"unknown dtype {name!r}", allowed=", ".join(row.name for row in DTYPES), where="dtype"
    )
