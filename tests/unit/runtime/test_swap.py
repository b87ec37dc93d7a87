"""Sequences on the host: they come back with their own blocks, shared ones copied once."""

from __future__ import annotations

import pytest

from pagegen.errors import CacheError
from pagegen.runtime.block_manager import BlockManager
from tests.kv_store import KvStore


def make(num_blocks: int, num_host_blocks: int, **options: int) -> tuple[BlockManager, KvStore]:
    manager = BlockManager(num_blocks, 4, num_host_blocks=num_host_blocks, **options)  # type: ignore[arg-type]
    return manager, KvStore(manager)


def test_it_comes_back_after_others_took_its_blocks() -> None:
    manager, store = make(3, 3)
    a = manager.new_sequence(range(10))
    store.start(a)
    assert store.swap_out(a) == 3
    assert manager.num_available == 3
    b = manager.new_sequence(range(50, 62))
    store.start(b)
    store.check(b)
    assert store.swap_in(a) is None  # no room: nothing has changed
    assert manager.counters.swapped_in_blocks == 0
    manager.free(b)
    assert store.swap_in(a) == 3
    store.check(a)
    assert store.step(a, 10)
    assert manager.gauges().host_free_blocks == 3


def test_what_the_cache_still_has_is_not_copied_back() -> None:
    manager, store = make(8, 8)
    a = manager.new_sequence(range(10))
    store.start(a)
    assert store.swap_out(a) == 3
    assert store.swap_in(a) == 1  # the half full block
    store.check(a)
    assert manager.match_prefix(range(10)) == 8


def test_shared_blocks_are_copied_once_and_stay_shared() -> None:
    manager, store = make(8, 8)
    a = manager.new_sequence(range(10))
    store.start(a)
    b = manager.fork(a)
    b.append(1)
    assert store.step(b, 11)
    assert store.swap_out(a, b) == 4  # two shared, and each one's own
    other = manager.new_sequence(range(100, 132))
    store.start(other)
    store.poison_free_blocks()
    manager.free(other)
    assert store.swap_in(a, b) == 4
    assert a.block_table[:2].tolist() == b.block_table[:2].tolist()
    assert manager.gauges().used_blocks == 4
    store.check(a)
    store.check(b)
    manager.check_integrity()


def test_a_group_may_come_back_one_by_one() -> None:
    manager, store = make(8, 8)
    a = manager.new_sequence(range(10))
    store.start(a)
    b = manager.fork(a)
    assert store.swap_out(a, b) == 3  # the half full block is shared too
    assert store.swap_in(b) == 1
    store.check(b)
    b.append(1)
    assert store.step(b, 11)
    assert store.swap_in(a) == 1
    store.check(a)
    store.check(b)
    assert manager.host.num_free == 8


def test_a_full_host_is_reported() -> None:
    manager, store = make(8, 2)
    a = manager.new_sequence(range(10))
    store.start(a)
    assert manager.swap_out(a) is None
    assert (a.num_blocks, manager.host.num_free) == (3, 2)
    store.check(a)


def test_empty_slots_are_not_copied() -> None:
    manager, store = make(8, 8)
    a = manager.new_sequence(range(5))
    store.start(a)
    manager.allocate(a, 20)
    assert store.swap_out(a) == 2


def test_a_window_comes_back_without_what_it_left_behind() -> None:
    manager, store = make(8, 8, window=6)
    a = manager.new_sequence(range(18))
    store.start(a)
    assert a.first_block == 3
    assert store.swap_out(a) == 2
    other = manager.new_sequence(range(100, 132))
    store.start(other)
    manager.free(other)
    assert store.swap_in(a) == 2
    assert (a.first_block, a.num_blocks) == (3, 5)
    store.check(a)
    manager.check_integrity()


def test_a_cached_prefix_shorter_than_what_the_window_left_behind_is_no_use() -> None:
    manager, store = make(8, 8, window=2)
    a = manager.new_sequence(range(18))
    store.start(a)
    assert store.swap_out(a) == 1
    store.start(manager.new_sequence(range(100, 127)))  # evicts three of four cached blocks
    assert manager.match_prefix(range(17)) == 4
    assert store.swap_in(a) == 1
    assert manager.match_prefix(range(17)) <= 4  # nothing hangs behind it
    a.append([1, 2, 3])
    assert store.step(a, 21)
    store.check(a)
    manager.check_integrity()


def test_mistakes_are_named() -> None:
    manager, store = make(8, 8)
    a = manager.new_sequence(range(5))
    store.start(a)
    with pytest.raises(CacheError, match="not swapped out"):
        manager.swap_in(a)
    for group in ((), (a, a)):
        with pytest.raises(CacheError, match="one or more, each once"):
            manager.swap_out(*group)
    manager.swap_out(a)
    for call in (manager.swap_out, manager.preempt, manager.fork):
        with pytest.raises(CacheError, match="the sequence is swapped out"):
            call(a)
    with pytest.raises(CacheError, match="the sequence is swapped out"):
        manager.commit(a, 5)
    with pytest.raises(CacheError, match="the sequence is swapped out"):
        manager.allocate(a, 6)
