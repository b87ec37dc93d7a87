"""Triton source -> cubin or hsaco ahead of time, for a target that need not be present.

It knows nothing of kernels: a source defines one @triton.jit function named plan.symbol.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pagegen.archs import Arch
from pagegen.compile.artifact import Artifact, make_artifact
from pagegen.compile.compiler import SourceText, require
from pagegen.compile.environment import clean_environment
from pagegen.compile.fresh_process import compile_in_fresh_process
from pagegen.compile.resources import Figures, amdgcn_figures, cubin_figures
from pagegen.compile.triton_errors import refusal
from pagegen.compile.triton_release import (
    assembler_paths,
    assembler_release,
    release,
    triton_version,
)
from pagegen.errors import CompileError
from pagegen.plan import Plan

OLDEST: Final = (3, 6)
POINTER_BYTES: Final = 16  # what host code checks of every base pointer
NUMBERS: Final = {"i64": "i64", "i32": "i32", "f32": "fp32"}
SETTINGS: Final = {
    "TRITON_ALWAYS_COMPILE": "1",
    "TRITON_DISABLE_LINE_INFO": "1",  # a line table would hold a path
    "TRITON_DUMP_PTXAS_LOG": "1",  # the only place that tells spills
}


@dataclass(frozen=True)
class TritonAot:
    """The compiler of Triton sources, releases 3.6 and later."""

    def available(self) -> str:
        """Why it cannot be used here; "" when it can. Does not import Triton."""
        version = triton_version()
        if not version:
            return "Triton kernels need the triton package"
        if release(version) < OLDEST:
            return f"Triton {version} is installed; ahead-of-time builds need 3.6 or later"
        return ""

    def refuse_unknown(self, arch: Arch) -> None:
        """Raise CompileError when the installed release has no back end for `arch`."""
        from triton.backends import backends

        needed = {"cuda": "nvidia", "hip": "amd"}[arch.vendor]
        if needed not in backends:
            raise CompileError(
                f"this build of Triton cannot compile for {arch.name}",
                allowed=f"targets of {', '.join(sorted(backends))}",
                remedy="install Triton from PyPI, or leave the target out with --arch",
            )

    def identity(self) -> str:
        """Name and exact release, with those of the assemblers it will run."""
        require(self)
        releases = [assembler_release(path) for path in assembler_paths()]
        return f"triton {triton_version()} ({', '.join(releases)})"

    def options(self, plan: Plan, arch: Arch) -> tuple[str, ...]:
        """What Triton is told."""
        types, aligned = signature(plan)
        rows = [f"{name}={value}" for name, value in compile_options(plan).items()]
        return (f"{arch.vendor}:{arch.triton_arch}", *rows, f"{types}", f"aligned={aligned}")

    def compile(self, plan: Plan, source: SourceText, arch: Arch) -> Artifact:
        """Compile. Raises CompileError with the place in `source` when Triton refuses it."""
        require(self)
        if interpreting():
            # Triton was, or would be, imported as an interpreter; here it must be a compiler.
            return compile_in_fresh_process(plan, source, arch)
        with scratch_folder() as folder, clean_environment(**SETTINGS, TRITON_CACHE_DIR=folder):
            self.refuse_unknown(arch)
            with kernel_module(source, Path(folder)) as module:
                compiled, log = compile_kernel(plan, source, arch, module)
        return artifact_of(plan, source, arch, compiled, log)


def compile_options(plan: Plan) -> dict[str, int | bool]:
    """Named in full, since Triton's defaults differ between releases."""
    options: dict[str, int | bool] = {
        "num_warps": plan.num_warps,
        "num_stages": plan.num_stages,
        "num_ctas": 1,
        "enable_fp_fusion": True,
    }
    if plan.max_registers:
        options["maxnreg"] = plan.max_registers
    return options


def signature(plan: Plan) -> tuple[dict[str, str], tuple[int, ...]]:
    """(parameter -> type, indices of the pointers).

    Only pointers to elements are promised to be aligned; block ids, lengths and slots are often
    slices that start anywhere. Numbers are never specialised: one code for all.
    """
    types: dict[str, str] = {}
    aligned: list[int] = []
    for index, row in enumerate(plan.params):
        if row.type == "ptr":
            types[f"{row.name}_ptr"] = f"*{plan.element_type(row)}"
            if row.element not in ("i32", "i64"):
                aligned.append(index)
        else:
            types[row.name] = NUMBERS[row.type]
    return types, tuple(aligned)


def interpreting() -> bool:
    """Whether Triton in this process is, or would become, its CPU interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "false", "off", "n", "no"):
        return True
    if "triton" not in sys.modules:
        return False
    import triton.language

    # The library's own functions were decorated when Triton was imported.
    return type(triton.language.cdiv).__name__ == "InterpretedFunction"


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder for the source, which Triton reads back, and for all that Triton writes."""
    before = tempfile.tempdir
    try:
        with tempfile.TemporaryDirectory(prefix="pagegen-") as folder:
            tempfile.tempdir = folder  # Triton leaves its PTX there when the assembler fails
            yield folder
    except OSError as error:
        raise CompileError(
            f"no temporary file can be written: {error}", remedy="free some space, or set TMPDIR"
        ) from error
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def kernel_module(source: SourceText, folder: Path) -> Iterator[Any]:
    """Import the source from a file named by its content, so that no text of another is found.

    Triton reads a function's source through its file, and Python caches those by name.
    """
    name = f"pagegen_{source.digest}"
    path = folder / f"{name}.py"
    path.write_text(source.text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py path always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise refusal(error, source, str(path), f"triton {triton_version()}") from error
        yield module
    finally:
        del sys.modules[name]


def compile_kernel(plan: Plan, source: SourceText, arch: Arch, module: Any) -> tuple[Any, str]:
    """(Triton's compiled kernel, the assembler's report). Raises CompileError."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(module, plan.symbol, None)
    if kernel is None:
        raise CompileError(f"no function {plan.symbol}", where=source.path)
    types, aligned = signature(plan)
    attributes = {(index,): [["tt.divisibility", POINTER_BYTES]] for index in aligned}
    target = GPUTarget(arch.vendor, arch.triton_arch, arch.warp_size)
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            compiled = triton.compile(
                ASTSource(kernel, types, {}, attributes),
                target=target,
                options=compile_options(plan),
            )
    except Exception as error:
        compiler = f"triton {triton_version()} for {arch.name}"
        raise refusal(error, source, module.__file__, compiler) from error
    return compiled, log.getvalue()


def artifact_of(plan: Plan, source: SourceText, arch: Arch, compiled: Any, log: str) -> Artifact:
    """What Triton made. Raises CompileError when the launcher could not run it."""
    about = compiled.metadata
    scratch = [getattr(about, f"{name}_scratch_size", 0) or 0 for name in ("global", "profile")]
    if any(scratch) or about.name != plan.symbol:
        raise CompileError(
            f"{plan.symbol} on {arch.name}: entry {about.name}, {sum(scratch)} bytes of scratch",
            allowed="no scratch memory of Triton's own: launchers pass null pointers for it",
            remedy="avoid tensor descriptors made in the kernel",
            where=source.path,
        )
    figures = figures_of(plan, arch, compiled, log)
    assembler = f" ptxas {figures.cuda[0]}.{figures.cuda[1]}" if arch.vendor == "cuda" else ""
    return make_artifact(
        plan.symbol,
        arch,
        bytes(compiled.kernel),
        source_digest=source.digest,
        toolkit=f"triton {triton_version()}{assembler}",
        figures=figures,
        dynamic_smem_bytes=about.shared,
        num_warps=about.num_warps,
    )


def figures_of(plan: Plan, arch: Arch, compiled: Any, log: str) -> Figures:
    """What the code takes, as its own bytes and the assembler's report say."""
    if arch.vendor == "hip":
        return amdgcn_figures(compiled.asm["amdgcn"], plan.symbol)
    return cubin_figures(
        compiled.kernel, plan.symbol, log, counts_reserved=arch.capability >= (9, 0)
    )
