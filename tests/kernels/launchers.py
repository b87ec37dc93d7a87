"""Who can launch kernels: one row each, with the mark that chooses it.

A new way to run kernels is a class that does what Kernels says, a row here, and its mark in
pyproject.toml; every test of the folder then runs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pagegen.plan import Backend
from tests.kernels.interpreted import Interpreted
from tests.kernels.kernels import Kernels
from tests.kernels.on_device import OnDevice
from tests.kernels.simulated import Simulated


@dataclass(frozen=True)
class Launcher:
    """A way to run kernels, before it is started."""

    name: str  # in the ids of tests
    mark: str  # `pytest -m mark` chooses it
    backend: Backend
    start: Callable[[Path], Kernels]  # with an empty folder of its own


def start_simulated(seed: int, folder: Path) -> Simulated:
    """The simulator keeps what it compiles in pagegen's cache."""
    return Simulated(seed)


LAUNCHERS: Final = (
    Launcher("interpreted", "interpret", "triton", Interpreted),
    *(
        Launcher(f"simulated{seed}", "simulate", "cuda", partial(start_simulated, seed))
        for seed in range(3)
    ),
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
