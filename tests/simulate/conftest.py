"""Skips what needs a C++ compiler where there is none."""

from __future__ import annotations

import pytest

from pagegen.errors import CompileError
from pagegen.simulate import host_compiler


@pytest.fixture(autouse=True)
def compiler() -> None:
    """The system's C++ compiler."""
    try:
        host_compiler()
    except CompileError as error:
        pytest.skip(str(error).splitlines()[0])
