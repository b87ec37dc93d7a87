"""Generated packages for the tests of this folder, with and without a pretended GPU.

The GPU is pretended: launches of CPU tensors are recorded just before the driver.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.host_package import (
    Call,
    PretendedGpu,
    add_cubins,
    import_package,
    make_call,
    pretend_gpu,
    write_package,
)
from tests.specimens import specimen


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages; no test may change them."""
    root = tmp_path_factory.mktemp("packages")
    write_package(root, specimen(name="no_cubins"))
    add_cubins(write_package(root, specimen()))
    add_cubins(write_package(root, specimen(name="heads_first", layout="HND")))
    add_cubins(write_package(root, specimen(name="by_rows", lookup="csr", window=6)))
    return root


@pytest.fixture
def ops(packages: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with cubins, imported afresh."""
    return import_package(packages / "specimen", monkeypatch)


@pytest.fixture
def gpu(ops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    """`ops` launches on a pretended GPU."""
    return pretend_gpu(ops, monkeypatch)


@pytest.fixture
def call() -> Call:
    """Arguments for `ops`."""
    return make_call()


@pytest.fixture
def folder(packages: Path, tmp_path: Path) -> Path:
    """A package without cubins that a test may change; its name is no_cubins."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(packages / "no_cubins", tmp_path / "no_cubins", ignore=ignored))
