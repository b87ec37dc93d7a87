"""The package: what host code needs to know of a spec, and the plans it dispatches to.

It knows neither the YAML nor the templates that render it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagegen.dtypes import DType, dtype
from pagegen.plan import Plan

if TYPE_CHECKING:  # the manifest is read where the spec's parser is not installed
    from pagegen.spec import Spec


@dataclass(frozen=True)
class PackagePlan:
    """One generated package. Sizes in tokens or elements; 0 means off.

    Host templates test the booleans and print the rest, as kernel templates do with a Plan.
    """

    name: str
    spec_file: str  # base name
    spec_digest: str
    archs: tuple[str, ...]
    num_q_heads: int
    num_kv_heads: int
    head_dim: int  # of q and k
    head_dim_v: int
    block_size: int
    window: int
    soft_cap: float
    causal: bool
    csr: bool
    hnd: bool
    query: DType
    kv: DType
    out: DType
    kernels: tuple[str, ...]
    backends: tuple[str, ...]
    plans: tuple[Plan, ...]
    source_digests: tuple[str, ...]  # sha256 of each plan's source text

    @property
    def digest(self) -> str:
        """Content hash of the spec's meaning and of every kernel's plan and source, hexadecimal."""
        plans = (plan.digest for plan in self.plans)
        text = "\n".join((self.name, self.spec_digest, *plans, *self.source_digests))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def backends_literal(self) -> str:
        """`backends` as a Python tuple."""
        names = ", ".join(f'"{name}"' for name in self.backends)
        return f"({names},)" if len(self.backends) == 1 else f"({names})"

    @property
    def decode(self) -> bool:
        return "decode" in self.kernels

    @property
    def prefill(self) -> bool:
        return "prefill" in self.kernels

    @property
    def attention(self) -> bool:
        return self.decode or self.prefill

    @property
    def write_kv(self) -> bool:
        return "write_kv" in self.kernels

    @property
    def merge_states(self) -> bool:
        return "merge_states" in self.kernels

    @property
    def copy_blocks(self) -> bool:
        return "copy_blocks" in self.kernels


def package(spec: Spec, plans: Sequence[Plan], source_digests: Sequence[str]) -> PackagePlan:
    """The package of `spec`: its plans, and the digests of what emit made of them."""
    return PackagePlan(
        name=spec.name,
        spec_file=spec.file_name,
        spec_digest=spec.digest,
        archs=spec.archs,
        num_q_heads=spec.num_q_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        head_dim_v=spec.head_dim_v,
        block_size=spec.block_size,
        window=spec.window,
        soft_cap=spec.soft_cap,
        causal=spec.causal,
        csr=spec.lookup == "csr",
        hnd=spec.layout == "HND",
        query=dtype(spec.dtype_query),
        kv=dtype(spec.dtype_kv),
        out=dtype(spec.dtype_out),
        kernels=spec.kernels,
        backends=spec.backends,
        plans=tuple(plans),
        source_digests=tuple(source_digests),
    )
