"""Which blocks hold which prefix, and which of those that nobody uses goes first.

It knows no sequence: token arrays and block ids come in, runs of blocks go out.

A radix tree (RadixAttention, Zheng et al., 2024) over whole blocks that are found by a hash of
their content, chained through the parent (vLLM). A node is a run of blocks that one sequence
filled, so that a prompt of thousands of blocks costs a few steps of Python and some array
operations. Edges are found by Python's hash of (column, the block's tokens), and the dictionary
compares those tokens; inside a run the tokens are compared directly. No hash is ever trusted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagegen.runtime.block_pool import BlockPool, Ids
from pagegen.runtime.sequence import Tokens, grown

Edge = tuple[Hashable, bytes]  # column, or at the root the namespace; the block's tokens


GLANCE_TOKENS = 1024


class Run:
    """Blocks [depth, depth + length) of all prefixes that pass through it, and what follows.

    `segments` are its blocks that nobody holds, the deepest first.
    """

    __slots__ = (
        "children",
        "depth",
        "generation",
        "ids",
        "is_detached",
        "key",
        "length",
        "parent",
        "segments",
        "tokens",
    )

    def __init__(self, parent: Run | None, key: Edge, depth: int) -> None:
        self.parent = parent
        self.key = key
        self.depth = depth
        self.length = 0
        self.ids: Ids = np.empty(0, np.int64)
        self.tokens: Tokens = np.empty(0, np.int32)
        self.children: dict[Edge, Run] = {}
        self.segments: list[Segment] = []
        self.generation = 0  # how often its end was cut off
        self.is_detached = False

    def extend(self, ids: Ids, tokens: Tokens) -> None:
        """Add blocks at the end."""
        size = len(tokens) // len(ids)
        old, new = self.length, self.length + len(ids)
        if new > len(self.ids):
            if old == 0:
                self.ids, self.tokens = ids.copy(), tokens.copy()
                self.length = new
                return
            self.ids = grown(self.ids, old, new)
            self.tokens = grown(self.tokens, old * size, len(self.ids) * size)
        self.ids[old:new] = ids
        self.tokens[old * size : new * size] = tokens
        self.length = new

    def cut(self, length: int, block_size: int) -> None:
        """Drop blocks at the end, and give back memory once most of it is unused."""
        self.length = length
        self.generation += 1
        if length * 4 < len(self.ids):
            self.ids = self.ids[:length].copy()
            self.tokens = self.tokens[: length * block_size].copy()


class Segment:
    """Blocks [begin, end) of a run that were last used at the same time."""

    __slots__ = ("begin", "end", "run")

    def __init__(self, run: Run, begin: int, end: int) -> None:
        self.run = run
        self.begin = begin
        self.end = end


class Hold(NamedTuple):
    """A sequence's way through a run: its table follows the run up to column `end`."""

    run: Run
    end: int
    generation: int


class PrefixCache:
    """Published blocks of a pool.

    Eviction is least recently used first. That is also leaf first: who holds a block holds all
    before it, and a release puts the deepest first. A sliding window breaks this (`is_windowed`):
    blocks are given up from the front, and if such a block is evicted before those behind it, its
    run leaves the index with all that follows.
    """

    def __init__(self, pool: BlockPool, block_size: int, *, is_windowed: bool = False) -> None:
        self.pool = pool
        self.block_size = block_size
        self.is_windowed = is_windowed
        self.num_evictable = 0  # blocks that nobody holds
        self.root = Run(None, (None, b""), 0)
        self.lru: OrderedDict[Segment, None] = OrderedDict()  # the oldest first

    def match(self, tokens: Tokens, namespace: Hashable, num_blocks: int) -> list[Hold]:
        """The longest cached prefix of at most `num_blocks` blocks. Changes nothing."""
        size = self.block_size
        path: list[Hold] = []
        run, column = self.root, 0
        while column < num_blocks:
            child = run.children.get(self.edge(tokens, namespace, column))
            if child is None:
                break
            run = child
            column += self.common(run, 0, tokens[column * size : num_blocks * size])
            path.append(Hold(run, column, run.generation))
        return path

    def edge(self, tokens: Tokens, namespace: Hashable, column: int) -> Edge:
        """What the child that starts at this column is found by, given its parent."""
        size = self.block_size
        block = tokens[column * size : (column + 1) * size].tobytes()
        return (column or namespace, block)

    def common(self, run: Run, begin: int, tokens: Tokens) -> int:
        """How many blocks of `run` from block `begin` on hold the first of these tokens."""
        size = self.block_size
        count = min((run.length - begin) * size, len(tokens))
        done = 0
        # A look at the start first: most runs that differ do so early.
        for end in (min(GLANCE_TOKENS, count), count):
            mine = run.tokens[begin * size + done : begin * size + end]
            same = mine == tokens[done:end]
            if not same.all():
                return (done + int(same.argmin())) // size
            done = end
        return count // size

    def acquire(self, run: Run, begin: int, end: int) -> None:
        """Somebody holds blocks [begin, end) now: they cannot be evicted."""
        segments = run.segments
        kept: list[Segment] = []  # only a window leaves some before `begin`
        while segments and segments[-1].begin < end:
            segment = segments.pop()
            if segment.end <= begin:
                kept.append(segment)
                continue
            low, high = max(segment.begin, begin), min(segment.end, end)
            self.num_evictable -= high - low
            before = segment.begin
            if segment.end > end:
                segment.begin = end  # the rest keeps its age
                segments.append(segment)
            else:
                del self.lru[segment]
            if before < begin:
                front = Segment(run, before, begin)
                self.lru[front] = None
                kept.append(front)
        segments += kept[::-1]

    def release(self, run: Run, begin: int, dead: NDArray[np.bool_]) -> None:
        """Nobody holds the blocks begin + i of `run` any more where dead[i]."""
        num_dead = int(np.count_nonzero(dead))
        if num_dead == 0:
            return
        if run.is_detached:
            self.pool.push(run.ids[begin : begin + len(dead)][dead])
            return
        edges = np.flatnonzero(dead[1:] != dead[:-1]) + 1 if num_dead < len(dead) else ()
        bounds = [0, *(int(edge) for edge in edges), len(dead)]
        for low, high in zip(bounds[-2::-1], bounds[:0:-1], strict=True):
            if high > low and dead[low]:
                segment = Segment(run, begin + low, begin + high)
                place = len(run.segments)
                while place and run.segments[place - 1].begin < segment.begin:
                    place -= 1
                run.segments.insert(place, segment)
                self.lru[segment] = None
                self.num_evictable += high - low

    def evict(self, count: int) -> int:
        """Give at least `count` blocks back to the pool; says how many.

        The caller has made sure that so many can be evicted.
        """
        before = self.num_evictable
        while before - self.num_evictable < count:
            segment = next(iter(self.lru))
            run = segment.run
            if self.is_windowed and not self._is_leaf(segment):
                self.detach(run)
                continue
            size = min(count - (before - self.num_evictable), segment.end - segment.begin)
            end = segment.end - size
            self.pool.push(run.ids[end : segment.end])
            self.num_evictable -= size
            segment.end = end
            if end == segment.begin:
                del self.lru[segment]
                run.segments.remove(segment)
            run.cut(end, self.block_size)
            if end == 0:
                self._unlink(run)
        return before - self.num_evictable

    def _is_leaf(self, segment: Segment) -> bool:
        run = segment.run
        if segment.end < run.length:
            return False
        first = run.depth + segment.begin
        return all(child.depth <= first for child in run.children.values())

    def _unlink(self, run: Run) -> None:
        run.is_detached = True
        if run.parent is not None:
            run.parent.children.pop(run.key, None)

    def detach(self, run: Run) -> None:
        """Take a run and all that follows out of the index; what nobody holds becomes free."""
        self._unlink(run)
        pending = [run]
        while pending:
            run = pending.pop()
            run.is_detached = True
            pending += run.children.values()
            run.children = {}
            for segment in run.segments:
                self.pool.push(run.ids[segment.begin : segment.end])
                self.num_evictable -= segment.end - segment.begin
                del self.lru[segment]
            run.segments = []

    def clear(self) -> None:
        """Empty the index: nothing that was published so far is found again."""
        for run in list(self.root.children.values()):
            self.detach(run)

    def insert(
        self, hold: Hold | None, namespace: Hashable, column: int, tokens: Tokens, ids: Ids
    ) -> Hold:
        """Publish blocks from `column` on that no cached run holds; `hold` ends before them.

        tokens: the sequence's, up to the last of these blocks' inclusive. They extend the run
        that they follow if they stand at its end, and start a new one otherwise.
        """
        run = self.root if hold is None else hold.run
        if hold is None or column != run.depth + run.length:
            key = self.edge(tokens, namespace, column)
            child = Run(run, key, column)
            run.children[key] = child
            run = child
        run.extend(ids, tokens[column * self.block_size :])
        return Hold(run, column + len(ids), run.generation)
