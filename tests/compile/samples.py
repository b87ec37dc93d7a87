"""Tiny kernels with plans of their own, for tests of the compilers that need no template."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from pagegen.dtypes import dtype
from pagegen.plan import Backend, Param, Plan

PARAMS = (
    Param("out", "ptr", "[128]", "fp32", const=False),
    Param("x", "ptr", "[128, 64]", "bf16"),
    Param("x_stride_row", "i64", "elements from one row to the next"),
    Param("scale", "f32", "multiplies x"),
    Param("n", "i32", "rows"),
)

CUDA = """\
typedef unsigned short u16;
struct Params {
  float* out;
  const u16* x;
  long long x_stride_row;
  float scale;
  int n;
};

extern "C" __global__ void __launch_bounds__(128) SYMBOL(const __grid_constant__ Params p) {
  __shared__ float row[128];
  row[threadIdx.x] = __uint_as_float(p.x[threadIdx.x * p.x_stride_row] << 16);
  __syncthreads();
  if (threadIdx.x < p.n) p.out[threadIdx.x] = p.scale * row[127 - threadIdx.x];
}
"""

# 96 loads whose values are all needed after a barrier, in 64 registers at most.
CUDA_SPILLING = """\
struct Params {
  float* out;
  const float* x;
  long long x_stride_row;
  float scale;
  int n;
};

extern "C" __global__ void __launch_bounds__(1024) SYMBOL(const __grid_constant__ Params p) {
  float held[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) held[i] = p.x[threadIdx.x + i * p.x_stride_row];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) p.out[threadIdx.x + i * p.x_stride_row] = held[95 - i] * p.scale;
}
"""

# An array indexed by a number that is known only at run time cannot live in registers.
CUDA_STACK = """\
struct Params {
  float* out;
  const float* x;
  long long x_stride_row;
  float scale;
  int n;
};

extern "C" __global__ void __launch_bounds__(128) SYMBOL(const __grid_constant__ Params p) {
  float held[64];
  for (int i = 0; i < 64; ++i) held[i] = p.x[threadIdx.x * 64 + i];
  float chosen = held[threadIdx.x % 64];
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < 64; ++i) sum += held[i] * chosen;
  p.out[threadIdx.x] = sum;
}
"""

TRITON = """\
import triton
import triton.language as tl

ROWS = tl.constexpr(64)
COLS = tl.constexpr(64)


@triton.jit
def total(scores):
    return tl.sum(scores, 1)


@triton.jit
def SYMBOL(out_ptr, x_ptr, x_stride_row, scale, n):
    row = tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    x_stride_row = tl.multiple_of(x_stride_row, 8)
    at = row[:, None] * x_stride_row + col[None, :]
    x = tl.load(x_ptr + at, mask=row[:, None] < n, other=0.0)
    scores = tl.dot(x, tl.trans(x)) * scale
    tl.store(out_ptr + row, total(scores), mask=row < n)
"""


@dataclass(frozen=True)
class Text:
    """A source as emit would give it."""

    path: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def sample_plan(backend: Backend, **changes: Any) -> Plan:
    """A plan that fits the samples of `backend`."""
    plan = Plan(
        name="sample",
        spec_digest="0" * 64,
        kernel="merge_states",
        backend=backend,
        variant="tiny",
        targets=("sm_80",),
        query=dtype("bf16"),
        kv=dtype("bf16"),
        out=dtype("fp32"),
        constants=(),
        params=PARAMS,
        causal=False,
        window=False,
        soft_cap=False,
        csr=False,
        checked=False,
        num_warps=4,
        num_stages=2,
        dynamic_smem_bytes=0,
    )
    return replace(plan, **changes)


def sample_source(plan: Plan, text: str = "") -> Text:
    """`text`, or the backend's sample, with the plan's symbol in it."""
    folder, extension = ("cuda", "cu") if plan.backend == "cuda" else ("triton", "py")
    body = (text or (CUDA if plan.backend == "cuda" else TRITON)).replace("SYMBOL", plan.symbol)
    return Text(f"{folder}/{plan.kernel}_{plan.variant}.{extension}", body)
