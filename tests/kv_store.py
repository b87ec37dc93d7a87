"""A stand-in for the KV tensors whose every slot names whose token it holds, and after what.

A wrong block, a stale copy or a write into shared memory shows as another owner's name.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Sequence

POISON = -1
VERSIONS = 1 << 20


def owners(sequence: Sequence, end: int) -> NDArray[np.int64]:
    """A name for each position of [0, end): its namespace and all tokens up to it."""
    start = hash(sequence.namespace)
    names = accumulate(
        sequence.tokens[:end].tolist(), lambda before, token: hash((before, token)), initial=start
    )
    return np.array([name >> 2 for name in list(names)[1:]], np.int64)


class KvStore:
    """Device and host memory, changed in the order of the calls, as one stream would."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager = manager
        size = manager.block_size
        self.device = np.full((manager.pool.num_blocks, size), POISON, np.int64)
        self.host = np.full((manager.host.num_blocks, size), POISON, np.int64)
        self.version = np.zeros((manager.pool.num_blocks, size), np.int64)
        self.host_version = np.zeros((manager.host.num_blocks, size), np.int64)
        self.weights = 0  # the version of the model that computes

    def copy(self, copies: tuple[tuple[int, int], ...]) -> None:
        """What ops.copy_blocks does."""
        for source, target in copies:
            self.device[target] = self.device[source]
            self.version[target] = self.version[source]

    def run(self, sequence: Sequence, end: int) -> None:
        """Compute the KV of the tokens [num_computed, end), then commit."""
        begin = sequence.num_computed
        slots = self.manager.slot_mapping(sequence, begin, end)
        blocks = np.unique(slots // self.manager.block_size)
        assert (self.manager.pool.ref_count[blocks] == 1).all(), "a write into a shared block"
        self.device.reshape(-1)[slots] = owners(sequence, end)[begin:end]
        self.version.reshape(-1)[slots] = self.weights
        self.manager.commit(sequence, end)

    def step(self, sequence: Sequence, end: int) -> bool:
        """Allocate, copy, compute and commit up to `end`; False if it does not fit."""
        copies = self.manager.allocate(sequence, end)
        if copies is None:
            return False
        self.copy(copies)
        self.run(sequence, end)
        return True

    def start(self, sequence: Sequence) -> int:
        """Admit and compute everything; returns the cached tokens."""
        cached = self.manager.admit(sequence)
        assert cached is not None, "it does not fit"
        self.run(sequence, sequence.num_tokens)
        return cached

    def swap_out(self, *sequences: Sequence) -> int | None:
        """Copy to the host; returns the number of blocks, or None if the host is full."""
        pairs = self.manager.swap_out(*sequences)
        if pairs is None:
            return None
        self.host[pairs[:, 1]] = self.device[pairs[:, 0]]
        self.host_version[pairs[:, 1]] = self.version[pairs[:, 0]]
        return len(pairs)

    def swap_in(self, *sequences: Sequence) -> int | None:
        """Copy from the host; returns the number of blocks, or None if the device is full."""
        pairs = self.manager.swap_in(*sequences)
        if pairs is None:
            return None
        self.device[pairs[:, 1]] = self.host[pairs[:, 0]]
        self.version[pairs[:, 1]] = self.host_version[pairs[:, 0]]
        return len(pairs)

    def poison_free_blocks(self) -> None:
        """What nobody may read is made unreadable."""
        self.device[self.manager.pool.free_ids] = POISON
        self.host[self.manager.host.free_ids] = POISON

    def check(self, sequence: Sequence, *, oldest: int = 0) -> None:
        """A sequence reads its own tokens through its table, all that its window can see.

        oldest: the version of the weights that nothing it reads may be older than.
        """
        size = self.manager.block_size
        begin, end = sequence.first_block * size, sequence.num_computed
        blocks = sequence.block_table[sequence.first_block :]
        read = self.device[blocks].reshape(-1)[: end - begin]
        assert (read == owners(sequence, end)[begin:]).all(), "somebody else's tokens"
        assert (self.version[blocks].reshape(-1)[: end - begin] >= oldest).all(), "old weights"
