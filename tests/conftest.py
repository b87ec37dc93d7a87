"""Marks every test by its folder, and skips what needs a CUDA device where there is none.

It knows no test: what a test needs is said by where it stands.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDERS = ("unit", "compile", "interpret", "gpu", "golden", "mutation")


def has_cuda_device() -> bool:
    """Whether torch sees a GPU. Imported here: most runs have no test that needs to know."""
    import torch

    return torch.cuda.is_available() and torch.version.cuda is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag rewrites the goldens."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder; `pytest -m "not gpu"` and the like choose by it."""
    root = Path(__file__).parent
    for item in items:
        for folder in FOLDERS:
            if root / folder in item.path.parents:
                item.add_marker(folder)
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not has_cuda_device():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
