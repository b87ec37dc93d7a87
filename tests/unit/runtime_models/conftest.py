"""A package for tiny_model(), emitted once."""

from __future__ import annotations

import pytest

from pagegen.runtime.loader import Ops
from tests.tiny_models import tiny_package


@pytest.fixture(scope="session")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Ops:
    """Blocks of 4 tokens, 4 query heads over 2, fp32, plain PyTorch."""
    return tiny_package(tmp_path_factory.mktemp("packages"))
