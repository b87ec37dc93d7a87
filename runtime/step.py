"""What a step does, and a step while it is made.

It knows no rule: the scheduler decides, this keeps the books.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagegen.runtime.block_manager import Copies
from pagegen.runtime.block_pool import Ids
from pagegen.runtime.job import Job

NO_PAIRS = np.zeros((0, 2), np.int64)


class Chunk(NamedTuple):
    """Tokens [position, position + num_tokens) of a job. `samples`: its next token is wanted."""

    job: Job
    position: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True)
class Step:
    """What to do on the device, in this order.

    swapped_out  [n, 2] pairs (block, host block)
    swapped_in   [n, 2] pairs (host block, block); never in a step that swaps out
    copies       (from, to) blocks: copy-on-write
    chunks       the batch
    preempted    jobs that lost their blocks
    """

    swapped_out: Ids
    swapped_in: Ids
    copies: Copies
    chunks: tuple[Chunk, ...]
    preempted: tuple[Job, ...]


class Draft:
    """A step while it is made: `budget` tokens are left."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.chunks: dict[Job, Chunk] = {}
        self.copies: dict[Job, Copies] = {}
        self.swapped_out: list[Ids] = []
        self.swapped_in: list[Ids] = []
        self.preempted: list[Job] = []

    def add(self, job: Job, num_tokens: int, copies: Copies) -> None:
        position = job.sequence.num_computed
        samples = position + num_tokens == job.sequence.num_tokens
        self.chunks[job] = Chunk(job, position, num_tokens, samples)
        self.budget -= num_tokens
        if copies:
            self.copies[job] = copies

    def remove(self, job: Job) -> Copies:
        """Take a job out again; returns the copies that are not made now."""
        chunk = self.chunks.pop(job, None)
        if chunk is not None:
            self.budget += chunk.num_tokens
        return self.copies.pop(job, ())

    def step(self) -> Step:
        return Step(
            np.concatenate(self.swapped_out) if self.swapped_out else NO_PAIRS,
            np.concatenate(self.swapped_in) if self.swapped_in else NO_PAIRS,
            tuple(pair for copies in self.copies.values() for pair in copies),
            tuple(self.chunks.values()),
            tuple(self.preempted),
        )
