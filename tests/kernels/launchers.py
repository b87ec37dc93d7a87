"""Who can launch kernels: one row each, with the mark that chooses it.

A new way to run kernels is a class that does what Kernels says, a row here, and its mark in
pyproject.toml; every test of the folder then runs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pagegen.plan import Backend
from tests.kernels.interpreted import Interpreted
from tests.kernels.kernels import Kernels
from tests.kernels.on_device import OnDevice


@dataclass(frozen=True)
class Launcher:
    """A way to run kernels, before it is started."""

    name: str  # in the ids of tests
    mark: str  # `pytest -m mark` chooses it
    backend: Backend
    start: Callable[[Path], Kernels]  # with an empty folder of its own


LAUNCHERS: Final = (
    Launcher("interpreted", "interpret", "triton", Interpreted),
    Launcher("cuda", "gpu", "cuda", lambda folder: OnDevice("cuda")),
    Launcher("triton", "gpu", "triton", lambda folder: OnDevice("triton")),
)


class Running:
    """The launchers that were started, each once in a session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, Kernels] = {}

    def get(self, launcher: Launcher) -> Kernels:
        """Start it at the first test that asks for it."""
        if launcher.name not in self._running:
            folder = self.folder / launcher.name
            folder.mkdir(exist_ok=True)
            self._running[launcher.name] = launcher.start(folder)
        return self._running[launcher.name]

    def stop(self) -> None:
        """End them all."""
        for kernels in self._running.values():
            kernels.stop()
        self._running.clear()
