"""One row per target: its limits and abilities, and how each compiler names it.

It knows nothing of kernels: a plan compares its needs with these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pagegen.errors import TargetError

Vendor = Literal["cuda", "hip"]


@dataclass(frozen=True)
class Arch:
    """A compilation target. Sizes in bytes; `capability` is (major, minor) of the devices it names.

    Source: the compute-capability tables of the CUDA programming guide; AMD CDNA ISA manuals.
    """

    name: str
    vendor: Vendor
    capability: tuple[int, int]
    smem_per_block_bytes: int  # opt-in limit of one block
    smem_per_sm_bytes: int
    registers_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    warp_size: int
    mma_fp8: bool = False
    tma: bool = False
    wgmma: bool = False
    exact_device: bool = False  # an "a" target: its cubin runs on this capability only

    @property
    def triton_arch(self) -> int | str:
        """What triton.backends.compiler.GPUTarget takes as arch."""
        major, minor = self.capability
        return self.name if self.vendor == "hip" else 10 * major + minor

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a cubin for this target loads on a device of `capability`."""
        if self.vendor != "cuda":
            return False
        if self.exact_device:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability[1] >= self.capability[1]


_KB: Final = 1024
ARCHS: Final[tuple[Arch, ...]] = (
    Arch("sm_80", "cuda", (8, 0), 163 * _KB, 164 * _KB, 65536, 2048, 32, 32),
    Arch("sm_86", "cuda", (8, 6), 99 * _KB, 100 * _KB, 65536, 1536, 16, 32),
    Arch("sm_89", "cuda", (8, 9), 99 * _KB, 100 * _KB, 65536, 1536, 24, 32, mma_fp8=True),
    Arch("sm_90", "cuda", (9, 0), 227 * _KB, 228 * _KB, 65536, 2048, 32, 32, tma=True),
    Arch(
        "sm_90a", "cuda", (9, 0), 227 * _KB, 228 * _KB, 65536, 2048, 32, 32,
        mma_fp8=True, tma=True, wgmma=True, exact_device=True,
    ),
    Arch(
        "sm_100a", "cuda", (10, 0), 227 * _KB, 228 * _KB, 65536, 2048, 32, 32,
        mma_fp8=True, tma=True, exact_device=True,
    ),
    Arch(
        "sm_120a", "cuda", (12, 0), 99 * _KB, 100 * _KB, 65536, 1536, 24, 32,
        mma_fp8=True, tma=True, exact_device=True,
    ),
    Arch("gfx90a", "hip", (9, 10), 64 * _KB, 64 * _KB, 131072, 2048, 32, 64),
    Arch("gfx942", "hip", (9, 4), 64 * _KB, 64 * _KB, 131072, 2048, 32, 64, mma_fp8=True),
    Arch("gfx950", "hip", (9, 5), 160 * _KB, 160 * _KB, 131072, 2048, 32, 64, mma_fp8=True),
)  # fmt: skip


def arch(name: str) -> Arch:
    """The row called `name`. Raises TargetError listing the known targets."""
    for row in ARCHS:
        if row.name == name:
            return row
    raise TargetError(
        f"unknown arch {name!r}", allowed=", ".join(row.name for row in ARCHS), where="arch"
    )
