"""The keys, types and ranges of a spec, declared once; messages about them are derived from here.

It knows no rule between two fields, and no line or column.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pagegen.archs import ARCHS
from pagegen.plan import BACKENDS, KERNELS, Backend, Kernel

ARCH_NAMES: Final = tuple(row.name for row in ARCHS)
NAME_RULE: Final = "1 to 48 lower-case letters, digits and underscores, the first a letter"
NOT_BUILT: Final = {
    "mla": "latent (MLA) heads are not built yet",
    "kv_scale": "quantised KV is not built yet",
}

Count = Annotated[int, Meta(ge=1, le=1024)]
HeadDim = Annotated[int, Meta(ge=32, le=256, multiple_of=8)]
ComputeType = Literal["bf16", "fp16", "fp32"]
StorageType = Literal["bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "int8"]
ArchNames = Annotated[
    str | tuple[str, ...],
    Meta(description=f"one of, or a list of: {', '.join(ARCH_NAMES)}"),
]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the spec; unknown keys are refused."""


class Heads(Section, frozen=True):
    """Head counts and sizes in elements: `dim`, or `dim_qk` and `dim_v`."""

    query: Count
    kv: Count
    dim: HeadDim | UnsetType = UNSET
    dim_qk: HeadDim | UnsetType = UNSET
    dim_v: HeadDim | UnsetType = UNSET


class DTypes(Section, frozen=True):
    """Element types; `kv` and `out` default to `query`."""

    query: ComputeType
    kv: StorageType | UnsetType = UNSET
    out: ComputeType | UnsetType = UNSET


class Cache(Section, frozen=True):
    """How KV blocks look and how they are found."""

    block_size: Annotated[int, Meta(ge=1, le=4096)]  # tokens
    layout: Literal["NHD", "HND"] = "NHD"
    lookup: Literal["table", "csr"] = "table"


class Attention(Section, frozen=True):
    """What a query sees. Outside its range a cap would lose the score's digits in fp32."""

    mask: Literal["causal", "full"] = "causal"
    window: Annotated[int, Meta(ge=1, le=2**30)] | None = None  # visible keys, the own included
    soft_cap: Annotated[float, Meta(ge=1.0e-3, le=1.0e6)] | None = None
    sinks: bool = False
    alibi: bool = False


class Document(Section, frozen=True):
    """The whole file."""

    name: Annotated[str, Meta(description=NAME_RULE)]
    arch: ArchNames
    heads: Heads
    dtype: DTypes
    cache: Cache
    attention: Attention = Attention()
    kernels: Annotated[tuple[Kernel, ...], Meta(min_length=1)] = KERNELS
    backends: Annotated[tuple[Backend, ...], Meta(min_length=1)] = BACKENDS
