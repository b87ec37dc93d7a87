"""A rule of the machine: a tiny kernel that breaks it, and what the simulator must say, where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pytest

from pagegen.errors import SimulationError
from pagegen.wgmma import Wgmma
from tests.probes.probe import Box, Probe, kernel
from tests.probes.simulated import run

SEEDS: Final = (0, 1, 2)
MARK: Final = "// here"


@dataclass(frozen=True)
class Rule:
    """A kernel with `x` to read and `out` to write, 4096 bytes each, that does what it must not.

    said: what the report says, as a pattern. The report must name a line that ends in MARK; a
    kernel without one is wrong in no line that the report could name.
    """

    name: str
    said: str
    body: str
    partials: tuple[str, ...] = ()
    threads: int = 32
    grid: int = 1
    shared_bytes: int = 1024
    maps: Mapping[str, Box] = field(default_factory=dict)
    wgmmas: tuple[Wgmma, ...] = ()

    def probe(self) -> Probe:
        return Probe(
            name=self.name,
            partials=self.partials,
            body=kernel(self.body, threads=self.threads),
            inputs=lambda: {"x": np.arange(1024, dtype=np.uint32)},
            outputs=lambda: {"out": np.zeros(1024, np.uint32)},
            reference=lambda _: {},
            maps=self.maps,
            wgmmas=self.wgmmas,
            grid=self.grid,
            threads=self.threads,
            shared_bytes=self.shared_bytes,
        )

    def check(self, seed: int) -> None:
        """The simulator reports it, by its words and its line."""
        probe = self.probe()
        with pytest.raises(SimulationError) as caught:
            run(probe, seed)
        assert re.search(self.said, caught.value.asked), caught.value.asked
        lines = probe.text().splitlines()
        marked = {f"{self.name}.cu:{at}" for at, line in enumerate(lines, 1) if MARK in line}
        if marked:
            assert caught.value.where in marked, (caught.value, marked)


def ids(rules: tuple[Rule, ...]) -> list[str]:
    return [rule.name for rule in rules]
