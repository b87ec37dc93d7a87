"""The package: what host code needs to know of a spec, and the plans it dispatches to.

It knows neither the YAML nor the templates that render it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pagegen.dtypes import DType, dtype
from pagegen.plan import Plan
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
    causal: bool
    csr: bool
    hnd: bool
    query: DType
    kv: DType
    out: DType
    kernels: tuple[str, ...]
    backends: tuple[str, ...]
    plans: tuple[Plan, ...]

    @property
    def digest(self) -> str:
        """Content hash of the spec's meaning and of every plan, hexadecimal."""
        text = "\n".join((self.name, self.spec_digest, *(plan.digest for plan in self.plans)))
        return hashlib.sha256(text.encode()).hexdigest()

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


def package(spec: Spec, plans: Sequence[Plan]) -> PackagePlan:
    """The package of `spec`, whose plans lower made."""
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
        causal=spec.causal,
        csr=spec.lookup == "csr",
        hnd=spec.layout == "HND",
        query=dtype(spec.dtype_query),
        kv=dtype(spec.dtype_kv),
        out=dtype(spec.dtype_out),
        kernels=spec.kernels,
        backends=spec.backends,
        plans=tuple(plans),
    )
