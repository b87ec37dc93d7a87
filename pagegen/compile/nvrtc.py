"""CUDA source -> cubin with NVRTC, the run-time compiler in NVIDIA's PyPI wheels.

It knows nothing of kernels: a source is header-free text with one extern "C" entry.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from pagegen.archs import Arch
from pagegen.compile.artifact import Artifact, make_artifact
from pagegen.compile.compiler import SourceText, require
from pagegen.compile.environment import clean_environment
from pagegen.compile.resources import cubin_figures
from pagegen.errors import CompileError, Position
from pagegen.plan import Plan

LANGUAGE: Final = "c++17"
ASSEMBLER: Final = "-v"  # reports spills; changes no code
ERROR: Final = re.compile(r"^(?P<file>[^()\n]+)\((?P<line>\d+)\): \w*\s?error.*?: (?P<text>.*)$")
CARET: Final = re.compile(r"^\s*\^\s*$")
QUOTED_INDENT: Final = 2  # the compiler indents the line that it quotes


@dataclass(frozen=True)
class Nvrtc:
    """The compiler of CUDA sources, for CUDA 12 and 13."""

    def available(self) -> str:
        """Why it cannot be used here; "" when it can."""
        try:
            import cuda.core  # noqa: F401

            nvrtc_version()
        except ImportError as error:
            return f"CUDA kernels need cuda-core and cuda-bindings: {error}"
        except (RuntimeError, OSError) as error:  # the bindings are there, the library is not
            return f"CUDA kernels need the NVRTC library: {first_line(str(error))}"
        return ""

    def refuse_unknown(self, arch: Arch) -> None:
        """Raise CompileError when the installed release cannot compile for `arch`."""
        from cuda.bindings import nvrtc

        status, known = nvrtc.nvrtcGetSupportedArchs()
        if int(status) == 0:
            refuse_unlisted(arch, known, toolkit())

    def identity(self) -> str:
        """Name and exact release."""
        require(self)
        major, _ = nvrtc_version()
        wheel = "nvidia-cuda-nvrtc" if major >= 13 else f"nvidia-cuda-nvrtc-cu{major}"
        try:
            # The library itself tells no patch level.
            return f"{toolkit()} ({wheel} {metadata.version(wheel)})"
        except metadata.PackageNotFoundError:
            return toolkit()

    def options(self, plan: Plan, arch: Arch) -> tuple[str, ...]:
        """What NVRTC is told. No fast math, and no line table: it would hold a path."""
        named = (f"-std={LANGUAGE}", f"-arch={arch.name}", f"-Xptxas={ASSEMBLER}")
        return (*named, "-fmad=true", "-default-device")

    def compile(self, plan: Plan, source: SourceText, arch: Arch) -> Artifact:
        """Compile. Raises CompileError with the place in `source` when NVRTC refuses it."""
        require(self)
        if arch.vendor != "cuda":
            raise CompileError(f"{arch.name} has no CUDA compiler", allowed="the triton backend")
        self.refuse_unknown(arch)
        code, log = compile_cubin(source, arch)
        figures = cubin_figures(code, plan.symbol, log, counts_reserved=arch.capability >= (9, 0))
        return make_artifact(
            plan.symbol,
            arch,
            code,
            source_digest=source.digest,
            toolkit=toolkit(),
            figures=figures,
            dynamic_smem_bytes=plan.dynamic_smem_bytes,
            num_warps=plan.num_warps,
        )


def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the library that is loaded."""
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if int(status) != 0:
        raise RuntimeError(f"NVRTC reports {status}")
    return major, minor


def toolkit() -> str:
    """The name an artefact carries: "nvrtc 13.5"."""
    major, minor = nvrtc_version()
    return f"nvrtc {major}.{minor}"


def refuse_unlisted(arch: Arch, known: Sequence[int], compiler: str) -> None:
    """Raise CompileError unless `known`, capabilities as 10 * major + minor, has `arch`'s."""
    major, minor = arch.capability
    if 10 * major + minor not in known:
        raise CompileError(
            f"{compiler} cannot compile for {arch.name}",
            allowed=", ".join(f"sm_{row}" for row in sorted(known)),
            remedy="install a newer NVRTC, or leave the target out with --arch",
        )


def compile_cubin(source: SourceText, arch: Arch) -> tuple[bytes, str]:
    """(cubin, the assembler's report). Raises CompileError."""
    from cuda.core import Program, ProgramOptions

    # A bare file name: whatever stands here could reach the cubin.
    name = source.path.rpartition("/")[2]
    options = ProgramOptions(
        name=name,
        std=LANGUAGE,
        arch=arch.name,
        ptxas_options=ASSEMBLER,
        fma=True,
        # NVRTC before 13.1 takes a lambda without it for a host function.
        device_as_default_execution_space=True,
    )
    log = io.StringIO()
    try:
        with clean_environment():
            compiled = Program(source.text, "c++", options).compile("cubin", logs=log)
    except Exception as error:  # the class's module is private, and differs between releases
        if "NVRTC_ERROR" not in str(error):
            raise
        raise refusal(str(error), source, arch) from error
    return bytes(compiled.code), log.getvalue()


def refusal(log: str, source: SourceText, arch: Arch) -> CompileError:
    """The compiler's first error as ours, with the place in `source` when it names one."""
    lines = log.replace("\0", "").splitlines()
    for at, line in enumerate(lines):
        found = ERROR.match(line)
        if found is None:
            continue
        text = source.text.splitlines()
        number = int(found["line"])
        quoted = text[number - 1] if number <= len(text) else ""
        carets = [row.index("^") for row in lines[at + 1 : at + 3] if CARET.match(row)]
        column = max(carets[0] - QUOTED_INDENT + 1, 1) if carets else 1
        return CompileError(
            f"{toolkit()} for {arch.name}: {found['text']}",
            position=Position(source.path, number, column, quoted),
        )
    named = [
        line for line in lines if "error" in line.replace("NVRTC_ERROR", "") or "fatal" in line
    ]
    return CompileError(
        f"{toolkit()} for {arch.name}: {first_line(named[0] if named else log)}",
        where=source.path,
    )


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
