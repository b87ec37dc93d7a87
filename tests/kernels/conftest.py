"""Gives every test of the folder its kernels, once for each way to launch them.

It knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernels.kernels import Kernels
from tests.kernels.launchers import LAUNCHERS, Launcher, Running


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what its `only` mark leaves to another backend."""
    callspec = getattr(item, "callspec", None)
    launcher = callspec.params.get("kernels") if callspec is not None else None
    for mark in item.iter_markers("only"):
        if isinstance(launcher, Launcher) and mark.args != (launcher.backend,):
            pytest.skip(mark.kwargs["reason"])


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """All launchers of the session."""
    launchers = Running(tmp_path_factory.mktemp("kernels"))
    yield launchers
    launchers.stop()


@pytest.fixture(
    params=[
        pytest.param(row, marks=getattr(pytest.mark, row.mark), id=row.name) for row in LAUNCHERS
    ]
)
def kernels(request: pytest.FixtureRequest, running: Running) -> Kernels:
    """One way to run the kernels of one backend."""
    launcher: Launcher = request.param
    return running.get(launcher)
