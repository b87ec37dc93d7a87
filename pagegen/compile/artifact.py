"""What a compilation yields: the code of one kernel for one target, and what it costs to run.

It knows no compiler, no cache and no folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pagegen.archs import Arch
from pagegen.compile.occupancy import ctas_per_sm
from pagegen.compile.resources import Figures
from pagegen.errors import PackageError


@dataclass(frozen=True)
class Resources:
    """What a launch takes, as read from the compiled code."""

    registers: int  # of one thread
    spill_bytes: int  # of one thread
    stack_bytes: int  # of one thread
    static_smem_bytes: int  # of one block
    dynamic_smem_bytes: int  # of one block: what the launcher must ask for
    num_warps: int  # of one block: the launcher's block size is this many warps
    ctas_per_sm: int  # blocks resident on one multiprocessor

    @property
    def smem_bytes(self) -> int:
        """Shared memory of one block."""
        return self.static_smem_bytes + self.dynamic_smem_bytes


@dataclass(frozen=True)
class Artifact:
    """Compiled code; a compiler fills every field."""

    symbol: str  # plan.symbol, and the entry's name in the code
    arch: str  # name of the archs row it was compiled for
    code: bytes  # a cubin; for gfx targets an hsaco
    source_digest: str  # sha256 of the source text, hexadecimal
    toolkit: str  # "nvrtc 13.5", "triton 3.9.0 ptxas 13.4"
    driver_cuda: str  # the driver must support at least this CUDA version: "13.0"; "" for gfx
    resources: Resources

    @property
    def digest(self) -> str:
        """sha256 of the code, hexadecimal."""
        return hashlib.sha256(self.code).hexdigest()

    @property
    def path(self) -> str:
        """Where a package keeps it, relative to its folder."""
        suffix = "hsaco" if self.arch.startswith("gfx") else "cubin"
        return f"cubin/{self.symbol}.{self.arch}.{suffix}"

    def to_row(self) -> dict[str, Any]:
        """The row of cubin/artifacts.json; all but the code."""
        return {
            "arch": self.arch,
            "cubin": self.path,
            "cubin_bytes": len(self.code),
            "digest": self.digest,
            "driver_cuda": self.driver_cuda,
            "entry": self.symbol,
            "source_digest": self.source_digest,
            "toolkit": self.toolkit,
            **asdict(self.resources),
        }

    @staticmethod
    def from_row(row: Mapping[str, Any], code: bytes) -> Artifact:
        """The artefact that `to_row` described.

        Raises PackageError when the row lacks a field, or the code is not the one it describes.
        """
        try:
            numbers = {field.name: int(row[field.name]) for field in fields(Resources)}
            texts = [str(row[name]) for name in ("entry", "arch")]
            more = [str(row[name]) for name in ("source_digest", "toolkit", "driver_cuda")]
            digest = str(row["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise PackageError(
                f"not the row of an artefact: {error!r}", remedy="build the package again"
            ) from error
        found = Artifact(texts[0], texts[1], code, more[0], more[1], more[2], Resources(**numbers))
        if found.digest != digest:
            raise PackageError(
                f"{found.path} is not the code its row describes", remedy="build the package again"
            )
        return found


def make_artifact(
    symbol: str,
    arch: Arch,
    code: bytes,
    *,
    source_digest: str,
    toolkit: str,
    figures: Figures,
    dynamic_smem_bytes: int,
    num_warps: int,
) -> Artifact:
    """An artefact with all that follows from its figures filled in."""
    return Artifact(
        symbol=symbol,
        arch=arch.name,
        code=code,
        source_digest=source_digest,
        toolkit=toolkit,
        # A driver loads cubins of every toolkit of its own major version (NVIDIA, "CUDA
        # Compatibility", minor version compatibility).
        driver_cuda=f"{figures.cuda[0]}.0" if arch.vendor == "cuda" else "",
        resources=Resources(
            registers=figures.registers,
            spill_bytes=figures.spill_bytes,
            stack_bytes=figures.stack_bytes,
            static_smem_bytes=figures.static_smem_bytes,
            dynamic_smem_bytes=dynamic_smem_bytes,
            num_warps=num_warps,
            ctas_per_sm=ctas_per_sm(
                arch,
                registers=figures.registers,
                smem_bytes=figures.static_smem_bytes + dynamic_smem_bytes,
                num_warps=num_warps,
            ),
        ),
    )
