"""Compiles see the same environment everywhere: no variable of the user's changes the code.

It knows no compiler's interface, only the names of the variables that compilers read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PREFIXES = ("TRITON_", "MLIR_", "LLVM_", "AMDGCN_", "NVPTX_", "DISABLE_", "NVRTC_")
NAMES = ("PTXAS_OPTIONS", "USE_IR_LOC", "ALLOW_LHS_TMEM_LAYOUT_CONVERSION")
# Where the assembler is; its version is part of the cache key.
KEPT = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


def changes_code(name: str) -> bool:
    """Whether a compiler might read this variable."""
    return name not in KEPT and (name.startswith(PREFIXES) or name in NAMES)


def cleaned(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what changes code."""
    return {name: value for name, value in environment.items() if not changes_code(name)}


@contextmanager
def clean_environment(**wanted: str) -> Iterator[None]:
    """Run with the process's environment cleaned and `wanted` added; restored afterwards.

    Environment is the process's, not the thread's: compile in processes, one thread each.
    """
    kept = dict(os.environ)
    clean = {**cleaned(kept), **wanted}
    try:
        replace_environment(clean)
        yield
    finally:
        replace_environment(kept)


def replace_environment(wanted: Mapping[str, str]) -> None:
    """Make os.environ hold exactly `wanted`, touching only what differs."""
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
