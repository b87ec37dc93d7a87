"""Sliding windows: which blocks go, when, and what becomes of a prefix that lost its beginning."""

from __future__ import annotations

import pytest

from pagegen.errors import CacheError
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Sequence
from tests.kv_store import KvStore


def prompt(
    length: int, block_size: int, window: int, num_blocks: int = 16
) -> tuple[BlockManager, KvStore, Sequence]:
    manager = BlockManager(num_blocks, block_size, window=window, reserve_null_block=True)
    store = KvStore(manager)
    sequence = manager.new_sequence(range(length))
    store.start(sequence)
    return manager, store, sequence


def test_the_block_of_the_first_key_in_sight_stays() -> None:
    """The next query is at 64 and sees 33 .. 64: blocks 0 and 1 go, block 2 does not."""
    manager, store, sequence = prompt(64, 16, 32)
    assert sequence.block_table[:2].tolist() == [manager.null_block] * 2
    assert sequence.first_block == 2
    for position in range(64, 101):
        sequence.append(position)
        assert store.step(sequence, position + 1)
        store.poison_free_blocks()
        store.check(sequence)
        next_query = position + 1
        gone = [j for j in range(sequence.num_blocks) if (j + 1) * 16 <= next_query - 31]
        assert sequence.first_block == len(gone)
    assert manager.gauges().used_blocks == 3


@pytest.mark.parametrize("chunk", [24, 40])
def test_chunks_see_their_whole_window(chunk: int) -> None:
    manager = BlockManager(16, 16, window=32)
    store = KvStore(manager)
    sequence = manager.new_sequence(range(100))
    assert manager.admit(sequence, chunk) == 0
    store.run(sequence, chunk)
    while sequence.num_computed < 100:
        begin = sequence.num_computed
        assert store.step(sequence, min(100, begin + chunk))
        store.check(sequence)
    assert sequence.first_block == (100 - 31) // 16


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 9])
def test_a_sequence_longer_than_the_pool_runs_in_its_window(window: int) -> None:
    manager = BlockManager(5, 4, window=window)
    store = KvStore(manager)
    sequence = manager.new_sequence([1])
    store.start(sequence)
    for token in range(200):
        sequence.append(token)
        assert store.step(sequence, sequence.num_tokens)
        manager.check_integrity()
        store.check(sequence)
    assert manager.counters.window_blocks >= 45


def test_a_hit_holds_only_what_the_window_sees() -> None:
    manager, store, first = prompt(64, 16, 32)
    manager.free(first)
    again = manager.new_sequence([*range(64), 7])
    assert manager.admit(again) == 64
    assert again.block_table[:2].tolist() == [0, 0]
    assert manager.gauges().used_blocks == 3
    store.run(again, 65)
    store.check(again)


def test_a_prefix_that_lost_its_beginning_is_not_found() -> None:
    manager, store, sequence = prompt(64, 16, 32, num_blocks=7)
    assert manager.match_prefix(range(65)) == 64
    other = manager.new_sequence(range(500, 548))
    store.start(other)  # takes two free blocks, and one that the window left behind
    assert manager.match_prefix(range(65)) in (0, 16)
    store.check(sequence)
    sequence.append([1] * 32)
    assert store.step(sequence, 96)
    assert manager.match_prefix(sequence.tokens) in (0, 16)
    store.check(sequence)
    manager.check_integrity()
    manager.free(sequence)
    manager.free(other)
    assert manager.num_available == 6


def test_two_windows_share_and_part() -> None:
    manager, store, parent = prompt(20, 4, 8)
    child = manager.fork(parent)
    for one, token in ((parent, 1), (child, 2)):
        for _ in range(30):
            one.append(token)
            assert store.step(one, one.num_tokens)
            store.poison_free_blocks()
            store.check(parent)
            store.check(child)
            manager.check_integrity()


def test_what_the_window_left_behind_cannot_be_cut_to() -> None:
    manager, _, sequence = prompt(64, 16, 32)
    with pytest.raises(CacheError, match="cut to 40 tokens of 64"):
        manager.truncate(sequence, 40)
    assert sequence.num_computed == 64


def test_a_way_that_others_have_rebuilt_is_not_followed() -> None:
    """S stands behind a run of which it holds nothing; its end goes, and T puts another there."""
    manager = BlockManager(5, 2, window=2)
    store = KvStore(manager)
    s = manager.new_sequence([1, 1, 2, 2, 3])
    store.start(s)
    for tokens in ([9] * 5, [1, 1, 8], [1, 1, 5, 5, 6]):
        other = manager.new_sequence(tokens)
        store.start(other)
        manager.free(other)
    assert manager.match_prefix([1, 1, 5, 5, 0]) == 4
    s.append(7)
    assert store.step(s, 6)
    assert manager.match_prefix([1, 1, 5, 5, 3, 7, 0]) == 4  # (3, 7) followed (2, 2)
    store.check(s)
    manager.check_integrity()


def test_a_branch_leaves_the_index_with_the_block_that_it_grew_from() -> None:
    manager = BlockManager(6, 2, window=2)
    store = KvStore(manager)
    trunk, branch = manager.new_sequence([1, 1, 2, 2, 3, 3, 4]), manager.new_sequence([1, 1, 5])
    store.start(trunk)  # leaves three blocks behind at once
    assert store.start(branch) == 2
    branch.append([5, 6])
    assert store.step(branch, 5)  # a branch behind the first block, which it leaves behind
    manager.free(trunk)
    other = manager.new_sequence([9] * 8)
    store.start(other)
    manager.check_integrity()
    store.check(branch)
    for sequence in (branch, other):
        manager.free(sequence)
    manager.check_integrity()
    assert manager.num_available == 6


def test_a_way_that_was_held_to_the_last_is_followed_on() -> None:
    """Others come and go behind the block that S stands on: that is no reason to stop."""
    manager = BlockManager(4, 4, window=2)
    store = KvStore(manager)
    s = manager.new_sequence([1, 1, 1, 1])
    store.start(s)
    for tokens in ([1, 1, 1, 1, 2, 2, 2, 2, 2], [9] * 8):
        other = manager.new_sequence(tokens)
        store.start(other)
        manager.free(other)
    s.append([3, 3, 3, 3])
    assert store.step(s, 5)  # leaves the first block behind
    assert s.first_block == 1
    assert store.step(s, 8)
    assert s.is_publishing and s.num_published == 2
    manager.check_integrity()
