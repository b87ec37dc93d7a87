"""One interpreting process for all tests of the folder.

It knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interpret.worker import Interpreter


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """Started at the first test that asks for it; compiled nothing, so quick to start."""
    running = Interpreter(tmp_path_factory.mktemp("kernels"))
    yield running
    running.stop()
