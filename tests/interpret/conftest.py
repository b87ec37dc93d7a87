"""One interpreting process for all tests of the folder.

It knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

from pagegen.compile.triton_release import release, triton_version
from tests.interpret.worker import Interpreter


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """Started at the first test that asks for it; it compiles nothing, so it starts quickly."""
    if release(triton_version()) < (3, 7) and release(version("numpy")) >= (2, 4):
        pytest.skip("the interpreter of Triton 3.6 needs NumPy before 2.4")
    running = Interpreter(tmp_path_factory.mktemp("kernels"))
    yield running
    running.stop()
