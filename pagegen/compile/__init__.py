"""Source -> Artifact: emitted CUDA and Triton become device code with no GPU present.

It knows neither templates nor folders: a plan and its source in, code and its cost out. Every
function is picklable work for a process pool: plans, sources and artefacts are plain data.
"""

from __future__ import annotations

from typing import Final

from pagegen.archs import Arch
from pagegen.compile.artifact import Artifact, Resources
from pagegen.compile.cache import Cache
from pagegen.compile.compiler import Compiler, SourceText, compiler_of
from pagegen.errors import CompileError
from pagegen.plan import Backend, Plan

__all__ = [
    "Artifact",
    "Cache",
    "Compiler",
    "Resources",
    "SourceText",
    "available",
    "check",
    "compile_plan",
    "compile_source",
    "compiler_of",
]

# Registers are Triton's affair: what one release just fits in, the next may miss by a few.
TRITON_SLACK_BYTES: Final = 32


def available(backend: Backend) -> str:
    """Why kernels of `backend` cannot be compiled here; "" when they can (torch needs nothing)."""
    return "" if backend == "torch" else compiler_of(backend).available()


def compile_source(plan: Plan, source: SourceText, arch: Arch, cache: Cache) -> Artifact:
    """The artefact from the cache, or compiled and kept there.

    Raises CompileError when the compiler refuses the source or is not installed, and as `check`.
    """
    artifact = cache.find(plan, source, arch)
    if artifact is not None:
        check(artifact, plan, arch)
        return artifact
    artifact = compile_plan(plan, source, arch)
    cache.store(plan, source, arch, artifact)
    return artifact


def compile_plan(plan: Plan, source: SourceText, arch: Arch) -> Artifact:
    """The artefact, compiled now. Raises CompileError as compile_source does."""
    artifact = compiler_of(plan.backend).compile(plan, source, arch)
    check(artifact, plan, arch)
    return artifact


def check(artifact: Artifact, plan: Plan, arch: Arch) -> None:
    """Refuse code that could not be launched, or that keeps registers in memory.

    Raises CompileError naming the kernel, the target, the bytes and a remedy.
    """
    used = artifact.resources
    kernel = f"{plan.backend} {plan.kernel} {plan.variant} ({artifact.symbol}) on {arch.name}"
    if used.smem_bytes > arch.smem_per_block_bytes:
        raise CompileError(
            f"{kernel} needs {used.smem_bytes} bytes of shared memory",
            allowed=f"at most {arch.smem_per_block_bytes} for a block",
            remedy="a smaller tile or fewer stages",
        )
    if used.ctas_per_sm == 0:
        raise CompileError(
            f"{kernel} cannot run: {used.registers} registers a thread, {used.num_warps} warps",
            allowed=f"{arch.registers_per_sm} registers and {arch.max_threads_per_sm} threads",
            remedy="a smaller tile or fewer warps",
        )
    slack = TRITON_SLACK_BYTES if plan.backend == "triton" else 0
    if max(used.spill_bytes, used.stack_bytes) > slack and not plan.allow_stack:
        raise CompileError(
            f"{kernel} spills {used.spill_bytes} bytes and keeps {used.stack_bytes} bytes of each "
            "thread on a stack",
            allowed=f"{slack} and {slack}, so that values stay in registers",
            remedy="a smaller tile, fewer stages or more warps; index arrays by constants only",
        )
