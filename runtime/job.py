"""A sequence on its way through the scheduler: what was asked, and how far it has come.

It knows no memory but its sequence's table, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pagegen.runtime.sequence import Sequence


class State(Enum):
    """Where a job stands."""

    WAITING = "waiting"  # without blocks: new, or to be computed again
    SWAPPED = "swapped"  # its blocks are on the host
    RUNNING = "running"
    FINISHED = "finished"  # ended or aborted; its blocks are gone


@dataclass(eq=False)
class Job:
    """One sequence. `max_tokens` counts prompt and answer; at that length it ends.

    width: sequences it may become by forks, itself included, for which rows are kept free.
    priority: lower comes first; arrival decides among equals.
    """

    name: str
    sequence: Sequence
    max_tokens: int
    stop_token_ids: frozenset[int]
    priority: int
    arrival: int
    width: int
    state: State = State.WAITING
    waiting_since: int = 0  # step
    rank: tuple[int, int] = field(default=(0, 0))  # while it runs; the highest is preempted first
    row: int = -1  # of the block table, while it runs
    num_preemptions: int = 0
    num_missing: int = 0  # blocks that it lacked
    looked_up_at: int = -1  # the step in which that was found

    @property
    def num_to_compute(self) -> int:
        """Tokens whose KV is missing; 1 for a sequence that decodes."""
        return self.sequence.num_tokens - self.sequence.num_computed

    def ends_with(self, token: int) -> bool:
        """Whether the sequence, of which `token` is the newest, is done."""
        return token in self.stop_token_ids or self.sequence.num_tokens >= self.max_tokens
