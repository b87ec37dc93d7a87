"""Specs made in Python, for tests that need one without its YAML."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagegen.plan import BACKENDS, KERNELS
from pagegen.spec import Spec

SPECIMEN = Spec(
    name="specimen",
    archs=("sm_90a", "sm_80"),
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=32,
    head_dim_v=32,
    dtype_query="bf16",
    dtype_kv="bf16",
    dtype_out="bf16",
    block_size=4,
    layout="NHD",
    lookup="table",
    causal=True,
    window=0,
    soft_cap=0.0,
    kernels=KERNELS,
    backends=BACKENDS,
    file_name="specimen.yaml",
    digest="0" * 64,
)


def specimen(**changes: Any) -> Spec:
    """SPECIMEN with some fields changed."""
    return replace(SPECIMEN, **changes)
