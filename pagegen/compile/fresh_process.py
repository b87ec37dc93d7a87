"""Compiles one Triton kernel in a process of its own, where nothing was imported before.

It knows neither the compiler nor the kernel: it carries a job over and its result back.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from pagegen.archs import Arch
from pagegen.compile.artifact import Artifact
from pagegen.compile.compiler import SourceText, compiler_of
from pagegen.compile.environment import cleaned
from pagegen.errors import CompileError, PagegenError
from pagegen.plan import Plan

PROGRAM = "from pagegen.compile.fresh_process import serve; serve()"


def compile_in_fresh_process(plan: Plan, source: SourceText, arch: Arch) -> Artifact:
    """What the plan's compiler gives there; its CompileError is raised here."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=pickle.dumps((plan, source, arch)),
        capture_output=True,
        env={**cleaned(os.environ), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CompileError(
            f"the compiler's process ended with {done.returncode}: {lines[-1] if lines else ''}",
            where=source.path,
        )
    # The bytes come from a process this one started, not from a file.
    result = pickle.loads(done.stdout)
    if isinstance(result, PagegenError):
        raise result
    assert isinstance(result, Artifact), "serve() answers with one of the two"
    return result


def serve() -> None:
    """The other side: one job from standard input, its result to standard output."""
    plan, source, arch = pickle.load(sys.stdin.buffer)
    result: Artifact | PagegenError
    try:
        result = compiler_of(plan.backend).compile(plan, source, arch)
    except PagegenError as error:
        result = error
    sys.stdout.buffer.write(pickle.dumps(result))
