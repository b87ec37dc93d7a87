"""The blocks of one memory: which are free, and how many tables hold each of the others.

It knows neither sequences nor tokens, and never waits: every method takes O(1) steps of Python.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# [num_blocks of something] block ids. int64, NumPy's own index type: any other is converted at
# each use, which costs more than the use.
Ids = NDArray[np.int64]


class BlockPool:
    """Ref counts of `num_blocks` blocks and a stack of the free ones.

    The ids below `first` are never handed out. A block that was pushed last is popped first, so
    that a small working set stays small; a fresh pool pops ids in ascending order.
    """

    def __init__(self, num_blocks: int, first: int = 0) -> None:
        self.num_blocks = num_blocks
        self.first = first
        self.num_usable = num_blocks - first
        self.num_free = self.num_usable
        self.ref_count: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        self._stack: Ids = np.arange(first, num_blocks, dtype=np.int64)  # its top at the front

    def pop(self, count: int) -> Ids:
        """Take `count` free blocks, each with a ref count of 1: [count] int64.

        The caller has made sure that there are so many.
        """
        if count > self.num_free:
            raise IndexError(f"{count} blocks asked of {self.num_free}")
        top = self.num_usable - self.num_free
        self.num_free -= count
        ids: Ids = self._stack[top : top + count].copy()
        self.ref_count[ids] = 1
        return ids

    def push(self, ids: Ids) -> None:
        """Give back blocks whose ref count has come to 0."""
        top = self.num_usable - self.num_free
        self.num_free += len(ids)
        self._stack[top - len(ids) : top] = ids

    def drop(self, ids: Ids) -> NDArray[np.bool_]:
        """Lower the ref counts of distinct blocks; says which have come to 0: [num_ids] bool."""
        left = self.ref_count[ids] - 1
        self.ref_count[ids] = left
        dead: NDArray[np.bool_] = left == 0
        return dead

    def release(self, ids: Ids) -> None:
        """Lower the ref counts of distinct blocks, and give back those that nobody holds."""
        self.push(ids[self.drop(ids)])

    @property
    def free_ids(self) -> Ids:
        """The free blocks, the next one first: [num_free] int64."""
        return self._stack[self.num_usable - self.num_free :]
