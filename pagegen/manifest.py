"""The manifest: what the runtime may know of a generated package; JSON in and out.

It knows no template and no compiler, and is read where neither Jinja nor YAML is installed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pagegen import __version__
from pagegen.errors import PackageError

if TYPE_CHECKING:
    from pagegen.package import PackagePlan
    from pagegen.plan import Plan

FORMAT = 1  # of manifest.json; another one is refused
REBUILD = "build the package again with this version of pagegen"
Row = TypeVar("Row", "SpecFacts", "KernelFacts")


@dataclass(frozen=True)
class SpecFacts:
    """A spec's meaning. Sizes in tokens or elements; 0 means off."""

    file: str  # base name of the YAML file
    digest: str  # sha256 of the meaning, hexadecimal
    archs: tuple[str, ...]
    num_q_heads: int
    num_kv_heads: int
    head_dim: int  # of q and k
    head_dim_v: int
    dtype_query: str
    dtype_kv: str
    dtype_out: str
    block_size: int
    layout: str  # NHD or HND
    lookup: str  # table or csr
    causal: bool
    window: int
    soft_cap: float
    kernels: tuple[str, ...]
    backends: tuple[str, ...]


@dataclass(frozen=True)
class KernelFacts:
    """One kernel variant of one backend."""

    kernel: str
    backend: str
    variant: str
    symbol: str  # the kernel's function; for torch, whose function is the kernel's name, a label
    source: str  # path in the package
    source_digest: str  # sha256, hexadecimal
    targets: tuple[str, ...]
    constants: dict[str, int | str]  # what the source's constants block says
    params: tuple[tuple[str, str, str], ...]  # (name, type, element) in launch order
    num_warps: int
    num_stages: int
    dynamic_smem_bytes: int
    causal: bool
    window: bool
    soft_cap: bool
    csr: bool
    checked: bool


@dataclass(frozen=True)
class Manifest:
    """manifest.json. What compilers made of the kernels is in cubin/artifacts.json instead, so that
    this file, which is committed, follows from the spec and the templates alone."""

    name: str
    version: str  # of the pagegen that wrote it
    digest: str  # of the spec and of every kernel's plan and source
    spec: SpecFacts
    kernels: tuple[KernelFacts, ...]

    @staticmethod
    def from_plans(plan: PackagePlan, paths: Sequence[str]) -> Manifest:
        """The manifest of a package; `paths` are its kernels' sources, in its plans' order."""
        rows = zip(plan.plans, paths, plan.source_digests, strict=True)
        kernels = tuple(_kernel_facts(one, path, digest) for one, path, digest in rows)
        return Manifest(plan.name, __version__, plan.digest, _spec_facts(plan), kernels)

    def to_json(self) -> str:
        """The file's text, the same for equal manifests."""
        head = {"format": FORMAT, "pagegen": self.version, "name": self.name}
        body = {"digest": self.digest, "spec": asdict(self.spec)}
        kernels = [asdict(row) for row in self.kernels]
        return json.dumps({**head, **body, "kernels": kernels}, indent=1) + "\n"

    @staticmethod
    def from_json(text: str, where: str = "manifest.json") -> Manifest:
        """Read the file. Raises PackageError when it is damaged or of another format."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise PackageError(f"not JSON: {error}", remedy=REBUILD, where=where) from error
        found = data.get("format") if isinstance(data, dict) else None
        if found != FORMAT:
            raise PackageError(
                f"format {found!r}", allowed=f"format {FORMAT}", remedy=REBUILD, where=where
            )
        try:
            return Manifest(
                name=str(data["name"]),
                version=str(data["pagegen"]),
                digest=str(data["digest"]),
                spec=_row(SpecFacts, data["spec"]),
                kernels=tuple(_row(KernelFacts, row) for row in data["kernels"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PackageError(f"lacks or mistakes {error}", remedy=REBUILD, where=where) from error

    def find(self, kernel: str, backend: str, variant: str = "default") -> KernelFacts | None:
        """One kernel's row, or None."""
        wanted = (kernel, backend, variant)
        rows = (row for row in self.kernels if (row.kernel, row.backend, row.variant) == wanted)
        return next(rows, None)

    def variants(self, kernel: str, backend: str) -> tuple[str, ...]:
        """The variants of a kernel, the default first."""
        return tuple(
            row.variant for row in self.kernels if (row.kernel, row.backend) == (kernel, backend)
        )


def _row(kind: type[Row], data: dict[str, Any]) -> Row:
    """A row from JSON, whose lists become tuples again."""
    frozen: dict[str, Any] = {
        name: tuple(tuple(part) if isinstance(part, list) else part for part in value)
        if isinstance(value, list)
        else value
        for name, value in data.items()
    }
    return kind(**{field.name: frozen[field.name] for field in fields(kind)})


def _spec_facts(plan: PackagePlan) -> SpecFacts:
    return SpecFacts(
        file=plan.spec_file,
        digest=plan.spec_digest,
        archs=plan.archs,
        num_q_heads=plan.num_q_heads,
        num_kv_heads=plan.num_kv_heads,
        head_dim=plan.head_dim,
        head_dim_v=plan.head_dim_v,
        dtype_query=plan.query.name,
        dtype_kv=plan.kv.name,
        dtype_out=plan.out.name,
        block_size=plan.block_size,
        layout="HND" if plan.hnd else "NHD",
        lookup="csr" if plan.csr else "table",
        causal=plan.causal,
        window=plan.window,
        soft_cap=plan.soft_cap,
        kernels=plan.kernels,
        backends=plan.backends,
    )


def _kernel_facts(plan: Plan, path: str, digest: str) -> KernelFacts:
    return KernelFacts(
        kernel=plan.kernel,
        backend=plan.backend,
        variant=plan.variant,
        symbol=plan.symbol,
        source=path,
        source_digest=digest,
        targets=plan.targets,
        constants={row.name: row.value for row in plan.constants},
        params=tuple((row.name, row.type, row.element) for row in plan.params),
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
        dynamic_smem_bytes=plan.dynamic_smem_bytes,
        causal=plan.causal,
        window=plan.window,
        soft_cap=plan.soft_cap,
        csr=plan.csr,
        checked=plan.checked,
    )
