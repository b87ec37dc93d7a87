"""How blocks change hands: the moves that block_manager, publish and swap are made of.

It checks nothing: who calls has decided that the move is right and that it fits.
"""

from __future__ import annotations

import numpy as np

from pagegen.runtime.block_pool import BlockPool, Ids
from pagegen.runtime.metrics import Counters
from pagegen.runtime.prefix_cache import Hold, PrefixCache, Run
from pagegen.runtime.sequence import Sequence


class Ledger:
    """The device's pool, its prefix cache, and the moves between them and sequences."""

    def __init__(
        self, num_blocks: int, block_size: int, window: int | None, *, has_null_block: bool
    ) -> None:
        self.block_size = block_size
        self.window = window
        self.null_block = 0 if has_null_block else -1
        self.pool = BlockPool(num_blocks, int(has_null_block))
        self.cache = PrefixCache(self.pool, block_size, is_windowed=window is not None)
        self.counters = Counters()

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-num_tokens // self.block_size)

    def first_needed(self, position: int) -> int:
        """The first column that a query at `position`, or one after it, can see.

        Column j may go once (j + 1) * block_size <= position - window + 1.
        """
        if self.window is None:
            return 0
        return max(0, position - self.window + 1) // self.block_size

    def fits(self, missing: int, wanted: Ids | None = None, keep_free: int = 0) -> bool:
        """Whether `missing` blocks can be had besides the cached ones that are `wanted`."""
        available = self.pool.num_free + self.cache.num_evictable
        if wanted is not None and len(wanted):
            available -= len(wanted) - int(np.count_nonzero(self.pool.ref_count[wanted]))
        if missing + keep_free <= available:
            return True
        self.counters.failed_allocations += 1
        return False

    def take(self, count: int) -> Ids:
        """Blocks with a ref count of 1; cached ones are evicted if too few are free."""
        short = count - self.pool.num_free
        if short > 0:
            self.counters.evicted_blocks += self.cache.evict(short)
        self.counters.allocated_blocks += count
        return self.pool.pop(count)

    def add_blocks(self, sequence: Sequence, count: int) -> None:
        """Lengthen a table by new blocks."""
        if count:
            sequence.extend_table(self.take(count))
        sequence.num_slots = sequence.num_blocks * self.block_size

    def blocks_of(self, path: list[Hold], first: int) -> Ids:
        """The blocks along a path from column `first` on."""
        parts = [
            hold.run.ids[max(first - hold.run.depth, 0) : hold.end - hold.run.depth]
            for hold in path
            if hold.end > first
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def adopt(self, sequence: Sequence, path: list[Hold], first: int, ids: Ids) -> None:
        """Let an empty sequence hold the blocks along a path, from column `first` on."""
        sequence.first_block = first
        if first:
            sequence.extend_table(np.full(first, self.null_block, np.int64))
        if len(ids):
            sequence.extend_table(ids)
            self.pool.ref_count[ids] += 1
        for run, end, _ in path:
            if end > first:
                self.cache.acquire(run, max(first - run.depth, 0), end - run.depth)
        sequence.holds = path
        sequence.num_published = path[-1].end if path else 0
        sequence.num_computed = sequence.num_published * self.block_size

    def drop_blocks(self, sequence: Sequence, end: int) -> None:
        """Shorten a table to `end` columns."""
        begin = max(end, sequence.first_block)
        if begin < sequence.num_blocks:
            self._let_go(sequence, begin, sequence.num_blocks)
        sequence.cut_table(end)
        sequence.num_slots = end * self.block_size
        if end < sequence.num_published:
            sequence.num_published = end
            holds = sequence.holds
            while holds and holds[-1].run.depth >= end:
                holds.pop()
            if holds and holds[-1].end > end:
                holds[-1] = holds[-1]._replace(end=end)

    def leave_behind(self, sequence: Sequence, first: int) -> None:
        """The window has passed the columns before `first`."""
        begin = sequence.first_block
        if sequence.holds and begin < sequence.holds[-1].end:
            # Held until now, so its way has not been cut off: from here on publish must look.
            last = sequence.holds[-1]
            sequence.holds[-1] = last._replace(generation=last.run.generation)
        self._let_go(sequence, begin, first)
        sequence.replace_blocks(begin, self.null_block, first - begin)
        sequence.first_block = first
        self.counters.window_blocks += first - begin

    def _let_go(self, sequence: Sequence, begin: int, end: int) -> None:
        ids = sequence.block_table[begin:end]
        dead = self.pool.drop(ids)
        published = sequence.num_published
        if end > published:
            own = max(published - begin, 0)
            self.pool.push(ids[own:][dead[own:]])
        for run, stop, _ in reversed(sequence.holds):
            low, high = max(run.depth, begin), min(stop, end)
            if low < high:
                self.cache.release(run, low - run.depth, dead[low - begin : high - begin])

    def publish(self, sequence: Sequence, num_full: int) -> None:
        """Make the blocks up to column `num_full` findable; take the cached ones for equal ones."""
        cache, holds, size = self.cache, sequence.holds, self.block_size
        if holds and self._is_cut_off(sequence, holds[-1]):
            sequence.is_publishing = False
            return
        tokens = sequence.tokens[: num_full * size]
        column = sequence.num_published
        while column < num_full:
            hold = holds[-1] if holds else None
            run = hold.run if hold is not None else cache.root
            rest = tokens[column * size :]
            count = cache.common(run, column - run.depth, rest) if hold is not None else 0
            if count:
                holds.pop()
            else:
                child = run.children.get(cache.edge(tokens, sequence.namespace, column))
                if child is None:
                    ids = sequence.block_table[column:num_full]
                    added = cache.insert(hold, sequence.namespace, column, tokens, ids)
                    if added.run is run:
                        holds.pop()
                    holds.append(added)
                    break
                run, count = child, cache.common(child, 0, rest)
            holds.append(Hold(run, column + count, run.generation))
            self._merge(sequence, run, column, column + count)
            column += count
        sequence.num_published = num_full

    def _is_cut_off(self, sequence: Sequence, hold: Hold) -> bool:
        """Whether the place behind which a sequence would publish has left the index."""
        holds_nothing = sequence.first_block >= hold.end
        return hold.run.is_detached or (holds_nothing and hold.generation != hold.run.generation)

    def _merge(self, sequence: Sequence, run: Run, begin: int, end: int) -> None:
        """Put the run's blocks in columns [begin, end); the duplicates are given back."""
        theirs = run.ids[begin - run.depth : end - run.depth]
        own = sequence.block_table[begin:end]
        differ = theirs != own
        if not differ.any():
            return
        self.cache.acquire(run, begin - run.depth, end - run.depth)
        self.pool.ref_count[theirs[differ]] += 1
        duplicates = own[differ]
        sequence.replace_blocks(begin, theirs, end - begin)
        self.pool.release(duplicates)
        self.counters.merged_blocks += len(duplicates)
