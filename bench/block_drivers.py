"""Block managers and prefix caches behind one face, so that a trace can drive them all alike."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence as Items
from dataclasses import dataclass
from typing import Any, Protocol

from bench.traces import Request
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.prefix_cache import Hold
from pagegen.runtime.sequence import Namespace, Sequence, Tokens


class Manager(Protocol):
    """A request's life in a block manager."""

    name: str

    def prepare(self, request: Request) -> Any:
        """The request in the manager's own form; not timed."""

    def admit(self, made: Any) -> int | None:
        """Find the cached prefix and take blocks for the prompt: cached tokens, or None."""

    def decode(self, made: Any, token: int) -> bool:
        """Add a token, take its slot, publish its block when full. False if there is no room."""

    def free(self, made: Any) -> None:
        """Give everything back."""


class OurManager:
    """The block manager of pagegen."""

    name = "pagegen"

    def __init__(self, num_blocks: int, block_size: int) -> None:
        # vLLM always sets block 0 aside: here too, so that the pools are equal.
        self.manager = BlockManager(num_blocks, block_size, reserve_null_block=True)

    def prepare(self, request: Request) -> list[Any]:
        return [request.prompt(), None]

    def admit(self, made: list[Any]) -> int | None:
        sequence = made[1] = self.manager.new_sequence(made[0])
        cached = self.manager.admit(sequence)
        if cached is None:
            self.manager.free(sequence)
        else:
            self.manager.commit(sequence, sequence.num_tokens)
        return cached

    def decode(self, made: list[Any], token: int) -> bool:
        sequence: Sequence = made[1]
        if self.manager.allocate(sequence, sequence.num_computed + 1) is None:
            return False
        sequence.append(token)
        self.manager.commit(sequence, sequence.num_tokens)
        return True

    def free(self, made: list[Any]) -> None:
        self.manager.free(made[1])


class Index(Protocol):
    """A prefix cache with a pool of its own: what serving one prompt costs it."""

    name: str

    def prepare(self, request: Request) -> Any:
        """The prompt in the cache's own form; not timed."""

    def serve(self, made: Any) -> int:
        """Match, protect what was found, evict for the rest, insert, release: cached tokens."""


class OurIndex:
    """The prefix cache of pagegen with its pool, and no sequences."""

    name = "pagegen"

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.ledger = BlockManager(num_blocks, block_size).ledger

    def prepare(self, request: Request) -> Tokens:
        tokens = request.prompt()
        return tokens[: len(tokens) // self.block_size * self.block_size]

    def serve(self, made: Tokens) -> int:
        cache, pool = self.ledger.cache, self.ledger.pool
        namespace = Namespace()
        num_blocks = len(made) // self.block_size
        path: list[Hold] = cache.match(made, namespace, num_blocks)
        found = path[-1].end if path else 0
        held = self.ledger.blocks_of(path, 0)
        pool.ref_count[held] += 1
        for run, end, _ in path:
            cache.acquire(run, 0, end - run.depth)
        if found < num_blocks:
            ids = self.ledger.take(num_blocks - found)
            added = cache.insert(path[-1] if path else None, namespace, found, made, ids)
            cache.release(added.run, found - added.run.depth, pool.drop(ids))
        dead = pool.drop(held)
        for run, end, _ in reversed(path):
            cache.release(run, 0, dead[run.depth : end])
        return found * self.block_size


def as_array(tokens: Tokens) -> array[int]:
    """Tokens as Python's array of 64-bit integers."""
    return array("q", tokens.astype("int64").tobytes())


@dataclass
class Replay:
    """What a manager did with a trace."""

    hits: list[int]  # cached tokens, a request
    admissions: int = 0
    tokens: int = 0
    frees: int = 0
    seconds: float = 0.0

    @property
    def operations(self) -> int:
        """Calls: a request is admitted once, freed once, and asks once for each token."""
        return self.admissions + self.tokens + self.frees


class Player:
    """Plays a trace on a manager, `concurrency` requests alive at a time.

    The oldest leaves when one more arrives, or when there is no room: the same rule for everyone.
    """

    def __init__(self, manager: Manager, concurrency: int) -> None:
        self.manager = manager
        self.concurrency = concurrency
        self.live: deque[Any] = deque()
        self.replay = Replay([])

    def _free_oldest(self) -> None:
        self.manager.free(self.live.popleft())
        self.replay.frees += 1

    def play(
        self, requests: Items[Request], clock: Callable[[], float] = time.process_time
    ) -> None:
        """Go on with more requests; only the manager's work is timed."""
        manager, replay = self.manager, self.replay
        prepared = [(manager.prepare(r), r.output().tolist()) for r in requests]
        begin = clock()
        for made, output in prepared:
            while (cached := manager.admit(made)) is None and self.live:
                self._free_oldest()
            replay.hits.append(cached or 0)
            replay.admissions += 1
            if cached is None:
                continue  # longer than the whole pool
            self.live.append(made)
            for token in output:
                while not manager.decode(made, token) and len(self.live) > 1:
                    self._free_oldest()
            replay.tokens += len(output)
            if len(self.live) >= self.concurrency:
                self._free_oldest()
        replay.seconds += clock() - begin
