"""Marks every test by its folder, and skips what needs a CUDA device where there is none.

It knows no test: what a test needs is said by where it stands. In tests/kernels one test runs in
several ways, and each says it itself: its marks are those of its launcher.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

FOLDERS = ("unit", "compile", "simulate", "gpu", "golden", "mutation")


@cache
def has_cuda_device() -> bool:
    """Whether torch sees a GPU. Imported here: most runs have no test that needs to know."""
    import torch

    return torch.cuda.is_available() and torch.version.cuda is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """One flag rewrites the goldens, one runs what is slow."""
    parser.addoption("--slow", action="store_true", help="run tests that take a minute")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    """One thread a process, before anything imports torch: its workers would wait for cores that
    other tests use."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder; `pytest -m "not gpu"` and the like choose by it."""
    root = Path(__file__).parent
    for item in items:
        for folder in FOLDERS:
            if root / folder in item.path.parents:
                item.add_marker(folder)
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run it with --slow"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip before any fixture starts; from one place, so that a report tells it in one line."""
    if item.get_closest_marker("gpu") and not has_cuda_device():
        pytest.skip("no CUDA device")
