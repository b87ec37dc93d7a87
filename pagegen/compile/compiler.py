"""What every toolchain offers, so that the stages above need not know which one they hold.

It knows no cache and no toolchain until one is asked for.
"""

from __future__ import annotations

from typing import Protocol

from pagegen.archs import Arch
from pagegen.compile.artifact import Artifact
from pagegen.errors import CompileError
from pagegen.plan import Backend, Plan

INSTALL = "pip install 'pagegen[cu13]' (or [cu12], for a CUDA 12 driver)"


class SourceText(Protocol):
    """What emit gives: one file of source."""

    @property
    def path(self) -> str:
        """Relative to the package; errors name it."""

    @property
    def text(self) -> str: ...

    @property
    def digest(self) -> str:
        """sha256 of the text, hexadecimal."""


class Compiler(Protocol):
    """A toolchain: source to code for a target, with no GPU and no CUDA toolkit."""

    def available(self) -> str:
        """Why it cannot be used here; "" when it can."""

    def refuse_unknown(self, arch: Arch) -> None:
        """Raise CompileError when the installed release cannot compile for `arch`."""

    def identity(self) -> str:
        """Name and exact release, a part of the cache key. Raises CompileError if not available."""

    def options(self, plan: Plan, arch: Arch) -> tuple[str, ...]:
        """Everything besides the source that shapes the code, a part of the cache key."""

    def compile(self, plan: Plan, source: SourceText, arch: Arch) -> Artifact:
        """Compile. Raises CompileError with the place in `source` when the compiler refuses it."""


def compiler_of(backend: Backend) -> Compiler:
    """The toolchain of a backend. Raises CompileError for torch, which has nothing to compile."""
    if backend == "cuda":
        from pagegen.compile.nvrtc import Nvrtc

        return Nvrtc()
    if backend == "triton":
        from pagegen.compile.triton_aot import TritonAot

        return TritonAot()
    raise CompileError(f"{backend} kernels are not compiled", allowed="cuda, triton")


def require(compiler: Compiler) -> None:
    """Raise CompileError, saying what to install, when the compiler cannot be used here."""
    reason = compiler.available()
    if reason:
        raise CompileError(reason, remedy=INSTALL)
