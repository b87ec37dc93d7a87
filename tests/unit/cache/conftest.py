"""The stub in place of every compiler, and a cache of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pagegen.compile import Cache
from tests.stub_compiler import Stub


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    made = Stub()
    monkeypatch.setattr("pagegen.compile.compiler_of", lambda backend: made)
    monkeypatch.setattr("pagegen.compile.cache.compiler_of", lambda backend: made)
    yield made


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")
