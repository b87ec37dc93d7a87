"""Which way to take a running sequence's memory away: to the host and back, or computed again.

It knows two speeds of a machine, and no sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagegen.errors import RequestError

Way = Literal["swap", "recompute"]


@dataclass(frozen=True)
class Costs:
    """What each way takes, from two measured speeds.

        swap        2 * num_blocks * block_bytes / host_bytes_per_s     out now, back later
        recompute   num_tokens / prefill_tokens_per_s                   if nothing stays cached

    block_bytes: of all layers; host_bytes_per_s: of a copy between pinned host memory and the
    device. The defaults are an H200's over PCIe 5 with a model of 8 billion parameters; an engine
    measures its own.
    """

    block_bytes: int
    host_bytes_per_s: float = 50e9
    prefill_tokens_per_s: float = 30e3

    def __post_init__(self) -> None:
        if min(self.block_bytes, self.host_bytes_per_s, self.prefill_tokens_per_s) <= 0:
            raise RequestError(f"{self}", allowed="speeds and sizes above 0")

    def swap_seconds(self, num_blocks: int) -> float:
        """Of blocks that go to the host and come back."""
        return 2 * num_blocks * self.block_bytes / self.host_bytes_per_s

    def recompute_seconds(self, num_tokens: int) -> float:
        """Of tokens that run through the model once more."""
        return num_tokens / self.prefill_tokens_per_s

    def cheaper(self, num_tokens: int, num_blocks: int) -> Way:
        """The way that takes less time."""
        swapped = self.swap_seconds(num_blocks) < self.recompute_seconds(num_tokens)
        return "swap" if swapped else "recompute"
