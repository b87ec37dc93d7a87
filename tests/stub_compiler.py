"""A stand-in for the compilers: its code is the source it was given.

It knows no cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagegen.archs import Arch, arch
from pagegen.compile import Artifact, Resources
from pagegen.compile.compiler import SourceText
from pagegen.plan import Plan
from tests.compile.samples import sample_plan, sample_source

SM_80 = arch("sm_80")
PLAN = sample_plan("cuda")
SOURCE = sample_source(PLAN)


@dataclass
class Stub:
    """A compiler whose code is the source it was given; counts what it compiled."""

    release: str = "stub 1.0"
    flags: tuple[str, ...] = ("-O3",)
    compiled: int = 0

    def available(self) -> str:
        return ""

    def refuse_unknown(self, arch: Arch) -> None:
        pass

    def identity(self) -> str:
        return self.release

    def options(self, plan: Plan, arch: Arch) -> tuple[str, ...]:
        return self.flags

    def compile(self, plan: Plan, source: SourceText, arch: Arch) -> Artifact:
        self.compiled += 1
        return artifact(plan, source, arch)


def artifact(plan: Plan, source: SourceText, arch: Arch) -> Artifact:
    resources = Resources(32, 0, 0, 512, 1024, 4, 16)
    code = b"\x7fELF\n\0" + source.text.encode()
    return Artifact(plan.symbol, arch.name, code, source.digest, "stub 1.0", "13.0", resources)
