"""Emitted packages for the simulator: no cubin is needed, so none is made.

It knows no kernel.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pagegen.runtime.loader import load
from pagegen.spec import load as load_spec
from tests.host_package import write_package

ROOT = Path(__file__).parents[2]
SHIPPED = tuple(sorted(path.stem for path in (ROOT / "specs").glob("*.yaml")))


@cache
def package(spec: str) -> Any:
    """The package of a shipped spec, written once a process."""
    folder = Path(mkdtemp(prefix="pagegen_simulated_"))
    return load(write_package(folder, load_spec(ROOT / "specs" / f"{spec}.yaml")))


def cuda_kernels(spec: str) -> list[tuple[str, str]]:
    """(kernel, variant) of every CUDA kernel of a package."""
    rows = package(spec).manifest()["kernels"]
    return [(row["kernel"], row["variant"]) for row in rows if row["backend"] == "cuda"]
