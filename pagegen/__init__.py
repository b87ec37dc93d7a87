"""pagegen: a compiler for paged-attention kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pagegen.runtime.loader import Ops

__version__ = "0.1.0"


def load(path: str | Path, backend: str | None = None) -> Ops:
    """The generated package in the folder `path`; its functions are the attributes.

    backend: "cuda", "triton" or "torch" for every call that names none. Raises PackageError.
    """
    from pagegen.runtime.loader import load as load_package

    return load_package(path, backend)
