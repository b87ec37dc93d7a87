"""pagegen: a compiler for paged-attention kernels."""

from __future__ import annotations

__version__ = "0.1.0"
