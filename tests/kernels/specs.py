"""Small specs for tests of kernels, and the plans that a launcher runs for them.

It knows no kernel.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch

from pagegen.cases import Shape
from pagegen.lower import lower
from pagegen.oracle import Attention
from pagegen.plan import Kernel, Plan
from pagegen.spec import Layout, Lookup, Spec
from tests.kernels.kernels import Kernels

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FP32_ONLY = pytest.mark.only("triton", reason="CUDA kernels take bf16 and fp16")


def make_spec(
    *,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (32, 32),
    block_size: int = 16,
    dtype: str = "fp16",
    layout: Layout = "NHD",
    lookup: Lookup = "table",
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Spec:
    """A small spec; the test names only what it is about."""
    meaning = (heads, dims, block_size, dtype, layout, lookup, causal, window, soft_cap)
    return Spec(
        name="small",
        archs=("sm_80",),
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=dims[0],
        head_dim_v=dims[1],
        dtype_query=dtype,
        dtype_kv=dtype,
        dtype_out=dtype,
        block_size=block_size,
        layout=layout,
        lookup=lookup,
        causal=causal,
        window=window,
        soft_cap=soft_cap,
        kernels=("decode", "prefill"),
        backends=("triton",),
        file_name="small.yaml",
        digest=hashlib.sha256(repr(meaning).encode()).hexdigest(),
    )


def shape_of(spec: Spec) -> Shape:
    """The spec in the words of the shared cases."""
    return Shape(
        num_q_heads=spec.num_q_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_dim_v=spec.head_dim_v,
        block_size=spec.block_size,
        dtype=TORCH[spec.dtype_query],
        csr=spec.lookup == "csr",
        attention=Attention(spec.layout, spec.causal, spec.window, spec.soft_cap),
    )


def plans_of(kernels: Kernels, spec: Spec, kernel: Kernel) -> tuple[Plan, ...]:
    """Every variant that the launcher's backend has for its target, the default first."""
    return lower(
        replace(spec, kernels=(kernel,), backends=(kernels.backend,), archs=(kernels.arch,))
    )


def plan_of(kernels: Kernels, spec: Spec, kernel: Kernel, variant: str = "default") -> Plan:
    """The plan of one variant."""
    return next(plan for plan in plans_of(kernels, spec, kernel) if plan.variant == variant)
