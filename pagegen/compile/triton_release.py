"""Which Triton is installed, and which assemblers it will run, without importing it.

It knows nothing of compiling.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
from pathlib import Path


@functools.cache
def triton_folder() -> Path | None:
    """Where Triton is installed, found without importing it."""
    spec = importlib.util.find_spec("triton")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@functools.cache
def triton_version() -> str:
    """Triton's release, found without importing it; "" when it is not installed."""
    folder = triton_folder()
    if folder is None:
        return ""
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else "0"


def release(version: str) -> tuple[int, ...]:
    """(3, 6) of "3.6.0+cu128"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def assembler_paths() -> tuple[str, ...]:
    """The ptxas binaries Triton chooses from, by target."""
    folder = triton_folder() or Path()
    bundled = folder / "backends" / "nvidia" / "bin"
    chosen = {"ptxas": "TRITON_PTXAS_PATH", "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}
    return tuple(os.environ.get(variable, str(bundled / name)) for name, variable in chosen.items())


@functools.cache
def assembler_release(path: str) -> str:
    """What a ptxas says it is; "none" where there is none, as in a build for AMD only."""
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    lines = shown.stdout.strip().splitlines()
    return lines[-1] if lines else "none"
