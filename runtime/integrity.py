"""Recounts a block manager's books from nothing but tables and runs.

It changes nothing, and may be slow: it is for tests and for the day something looks wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pagegen.runtime.prefix_cache import PrefixCache, Run
from pagegen.runtime.sequence import Sequence

if TYPE_CHECKING:
    from pagegen.runtime.block_manager import BlockManager


def check(manager: BlockManager) -> None:
    """Raises AssertionError at the first book that does not balance."""
    for sequence in manager.sequences:
        _check_sequence(manager, sequence)
    _check_ref_counts(manager)
    _check_runs(manager.cache)
    _check_order(manager.cache)
    _check_host(manager)


def _check_sequence(manager: BlockManager, sequence: Sequence) -> None:
    size = manager.block_size
    table, first = sequence.block_table, sequence.first_block
    assert not sequence.is_freed
    assert sequence.num_computed <= sequence.num_tokens
    if sequence.host_blocks is not None:
        assert sequence.num_blocks == sequence.num_slots == 0 and not sequence.holds
        covered = manager.ledger.num_blocks_of(sequence.num_computed)
        assert first + len(sequence.host_blocks) == covered
        return
    assert sequence.num_slots == sequence.num_blocks * size >= sequence.num_computed
    assert (table[:first] == manager.null_block).all()
    assert (table[first:] >= manager.pool.first).all()
    assert len(set(table[first:].tolist())) == sequence.num_blocks - first
    if sequence.is_publishing and manager.prefix_caching:
        assert sequence.num_published == sequence.num_computed // size, "not published"
    column = 0
    for run, end, _ in sequence.holds:
        assert run.depth == column < end, "a path with a gap"
        low = max(column, first)
        if low < end:  # what the window left behind may be gone
            begin, stop = low - run.depth, end - run.depth
            assert (table[low:end] == run.ids[begin:stop]).all(), "another block than its run's"
            tokens = sequence.tokens[low * size : end * size]
            assert (run.tokens[begin * size : stop * size] == tokens).all(), "other tokens"
            assert run.is_detached or end <= run.depth + run.length, "cut off under a holder"
        column = end
    assert column == sequence.num_published


def _check_ref_counts(manager: BlockManager) -> None:
    pool = manager.pool
    expected = np.zeros(pool.num_blocks, np.int32)
    for sequence in manager.sequences:
        expected[sequence.block_table[sequence.first_block :]] += 1
    assert (expected == pool.ref_count).all(), "ref counts"
    free = pool.free_ids.tolist()
    cached = [
        int(block)
        for run in runs(manager.cache)
        for segment in run.segments
        for block in run.ids[segment.begin : segment.end]
    ]
    used = np.flatnonzero(expected).tolist()
    assert len(cached) == manager.cache.num_evictable, "evictable blocks"
    everything = sorted([*free, *cached, *used])
    assert everything == list(range(pool.first, pool.num_blocks)), "a block is lost or double"


def runs(cache: PrefixCache) -> Iterator[Run]:
    """Every run of the index."""
    pending = list(cache.root.children.values())
    while pending:
        run = pending.pop()
        pending += run.children.values()
        yield run


def _check_runs(cache: PrefixCache) -> None:
    size, refs = cache.block_size, cache.pool.ref_count
    seen: set[int] = set()
    segments = 0
    for run in runs(cache):
        parent = run.parent
        assert parent is not None and not run.is_detached and run.length > 0
        assert parent.children[run.key] is run
        assert run.key[1] == run.tokens[:size].tobytes(), "an edge of other tokens"
        if parent is not cache.root:
            assert parent.depth < run.depth <= parent.depth + parent.length, "a child in the air"
        ids = run.ids[: run.length].tolist()
        assert min(ids) >= cache.pool.first, "a null block in a run"
        assert len(set(ids)) == run.length and not seen & set(ids), "a block in two places"
        seen |= set(ids)
        idle = np.zeros(run.length, np.bool_)
        last = run.length + 1
        for segment in run.segments:
            assert segment.run is run and segment in cache.lru
            assert 0 <= segment.begin < segment.end <= min(last, run.length)
            idle[segment.begin : segment.end] = True
            last = segment.begin
        assert (idle == (refs[run.ids[: run.length]] == 0)).all(), "idle blocks"
        segments += len(run.segments)
    assert segments == len(cache.lru)
    assert not seen & set(cache.pool.free_ids.tolist()), "a free block can be found"


def _check_order(cache: PrefixCache) -> None:
    """Without a window no block is evicted before its children: they are older in the list."""
    if cache.is_windowed:
        return
    ages = {segment: age for age, segment in enumerate(cache.lru)}
    for run in runs(cache):
        if run.segments:
            assert run.segments[0].end == run.length, "a held block behind an idle one"
        for child in run.children.values():
            above = [s for s in run.segments if s.begin + run.depth < child.depth]
            if above:
                assert sum(s.end - s.begin for s in child.segments) == child.length
                assert max(ages[s] for s in child.segments) < min(ages[s] for s in above)
        order = [ages[segment] for segment in run.segments]
        assert order == sorted(order), "a parent older than its child"


def _check_host(manager: BlockManager) -> None:
    host = manager.host
    expected = np.zeros(host.num_blocks, np.int32)
    for sequence in manager.sequences:
        if sequence.host_blocks is not None:
            expected[sequence.host_blocks] += 1
    assert (expected == host.ref_count).all(), "host ref counts"
    held = np.flatnonzero(expected).tolist()
    assert sorted([*host.free_ids.tolist(), *held]) == list(range(host.num_blocks))
