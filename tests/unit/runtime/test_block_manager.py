"""How a scheduler drives the block manager, and what it may rely on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pagegen.errors import CacheError
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Sequence
from tests.kv_store import KvStore


def test_one_sequence_from_prompt_to_end() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    sequence = manager.new_sequence([1, 2, 3, 4, 5, 6])
    assert manager.admit(sequence) == 0  # nothing cached: compute from position 0
    assert sequence.block_table.tolist() == [0, 1]
    assert manager.slot_mapping(sequence, 0, 6).tolist() == [0, 1, 2, 3, 4, 5]
    manager.commit(sequence, 6)
    for token in (7, 8, 9):
        sequence.append(token)
        assert manager.allocate(sequence, sequence.num_tokens) == ()
        manager.commit(sequence, sequence.num_tokens)
    assert sequence.block_table.tolist() == [0, 1, 2]
    manager.free(sequence)
    gauges = manager.gauges()
    assert (gauges.used_blocks, gauges.cached_blocks, gauges.free_blocks) == (0, 2, 6)


def test_a_prompt_is_admitted_in_chunks() -> None:
    manager = BlockManager(8, 4)
    sequence = manager.new_sequence(range(10))
    assert manager.admit(sequence, max_new_tokens=3) == 0
    assert sequence.num_slots == 4
    manager.commit(sequence, 3)
    assert manager.allocate(sequence, 9) == ()
    manager.commit(sequence, 9)
    assert sequence.num_slots == 12


def test_the_same_calls_give_the_same_blocks() -> None:
    def tables(seed: int) -> list[list[int]]:
        chance = random.Random(seed)
        manager = BlockManager(16, 2)
        store, seen = KvStore(manager), []
        live: list[Sequence] = []
        for _ in range(200):
            if live and chance.random() < 0.5:
                manager.free(live.pop(chance.randrange(len(live))))
            else:
                live.append(manager.new_sequence(chance.choices([1, 2], k=4)))
                if manager.admit(live[-1]) is None:
                    manager.free(live.pop())
                else:
                    store.run(live[-1], 4)
                    seen.append(live[-1].block_table.tolist())
        return seen

    assert tables(1) == tables(1)


def test_short_memory_says_none_and_changes_nothing() -> None:
    manager = BlockManager(3, 4)
    first = manager.new_sequence(range(8))
    manager.admit(first)
    second = manager.new_sequence(range(50, 58))
    assert manager.admit(second) is None
    assert second.num_blocks == 0 and manager.num_available == 1
    assert manager.admit(second, max_new_tokens=4) == 0
    first.append([1])
    assert manager.allocate(first, 9) is None
    assert first.num_blocks == 2
    assert manager.counters.failed_allocations == 2
    manager.check_integrity()


def test_a_watermark_holds_back_admission_but_not_a_running_sequence() -> None:
    manager = BlockManager(4, 4)
    first, second = manager.new_sequence(range(8)), manager.new_sequence(range(90, 94))
    assert manager.admit(first, keep_free=1) == 0
    assert manager.admit(second, keep_free=2) is None
    assert manager.allocate(first, 16) == ()  # the last block too


def test_what_can_never_fit_is_known_beforehand() -> None:
    assert BlockManager(13, 4, reserve_null_block=True).max_tokens == 48
    assert BlockManager(13, 4).max_tokens == 52


def test_a_full_length_sequence_takes_exactly_its_blocks() -> None:
    manager = BlockManager(8, 16)
    sequence = manager.new_sequence(range(60))
    manager.admit(sequence)
    manager.commit(sequence, 60)
    for token in range(60, 64):
        sequence.append(token)
        assert manager.allocate(sequence, sequence.num_tokens) == ()
        manager.commit(sequence, sequence.num_tokens)
    assert (sequence.num_blocks, sequence.num_slots) == (4, 64)


def test_the_null_block_is_never_handed_out() -> None:
    manager = BlockManager(3, 1, reserve_null_block=True)
    sequence = manager.new_sequence([5, 6])
    manager.admit(sequence)
    assert sorted(sequence.block_table.tolist()) == [1, 2]
    assert manager.gauges().null_blocks == 1


def test_table_rows_are_written_where_they_changed() -> None:
    manager = BlockManager(8, 2)
    sequence = manager.new_sequence([1, 2, 3])
    manager.admit(sequence)
    row = np.full(4, -7, np.int32)
    assert sequence.write_block_table(row) == (0, 2)
    assert sequence.write_block_table(row) == (2, 2)
    manager.commit(sequence, 3)
    sequence.append([4, 5])
    manager.allocate(sequence, 5)
    assert sequence.write_block_table(row) == (2, 3)
    assert row.tolist() == [0, 1, 2, -7]
    manager.truncate(sequence, 4)
    spare = manager.new_sequence([9])
    manager.admit(spare)  # takes the block that was given back
    sequence.append(6)
    manager.allocate(sequence, 5)
    assert sequence.write_block_table(row) == (2, 3)
    assert row.tolist() == [0, 1, 3, -7]
    other = torch.full((4,), -7, dtype=torch.int32)
    sequence.forget_row()
    assert sequence.write_block_table(other) == (0, 3)
    assert other.tolist() == row.tolist()
    with pytest.raises(CacheError, match="a table of 3 blocks does not fit a row of 2"):
        sequence.write_block_table(row[:2])


def test_chunks_of_any_size_cover_every_position_once() -> None:
    for size in (1, 4, 8, 16, 256):
        for chunk in (1, 7, 8, 16):
            for length in (chunk * 3 - 1, chunk * 3, chunk * 3 + 1):
                manager = BlockManager(64, size)
                store = KvStore(manager)
                sequence = manager.new_sequence(range(length))
                assert manager.admit(sequence, chunk) == 0
                store.run(sequence, min(chunk, length))
                while sequence.num_computed < length:
                    assert store.step(sequence, min(sequence.num_computed + chunk, length))
                store.check(sequence)


def test_preempted_tokens_come_back_from_the_cache() -> None:
    manager = BlockManager(4, 4)
    store = KvStore(manager)
    sequence = manager.new_sequence(range(10))
    store.start(sequence)
    manager.preempt(sequence)
    assert (sequence.num_blocks, sequence.num_tokens) == (0, 10)
    assert store.start(sequence) == 8
    store.check(sequence)


def test_truncate_gives_back_what_speculation_took() -> None:
    manager = BlockManager(8, 4)
    store = KvStore(manager)
    sequence = manager.new_sequence(range(6))
    store.start(sequence)
    sequence.append([60, 61, 62, 63])  # drafted
    manager.allocate(sequence, 10)
    assert sequence.num_blocks == 3
    manager.truncate(sequence, 7)  # one was right
    assert (sequence.num_blocks, sequence.num_computed) == (2, 6)
    assert store.step(sequence, 7)
    store.check(sequence)


def test_a_published_block_is_dropped_rather_than_written_again() -> None:
    manager = BlockManager(8, 4)
    store = KvStore(manager)
    sequence = manager.new_sequence(range(8))
    store.start(sequence)
    manager.truncate(sequence, 7)
    assert (sequence.num_computed, sequence.num_blocks) == (4, 1)
    assert manager.match_prefix(range(9)) == 8  # others still find it


def test_a_finished_sequence_is_over() -> None:
    manager = BlockManager(4, 4)
    sequence = manager.new_sequence([1])
    manager.admit(sequence)
    manager.free(sequence)
    free = manager.num_available
    for call in (manager.free, manager.preempt, manager.fork, manager.admit):
        with pytest.raises(CacheError, match="the sequence has ended"):
            call(sequence)
    with pytest.raises(CacheError, match="the sequence has ended"):
        manager.allocate(sequence, 1)
    assert manager.num_available == free
    manager.check_integrity()


@pytest.mark.parametrize("state", ["new", "mid-chunk", "preempted", "running", "swapped"])
def test_a_sequence_can_end_in_any_state(state: str) -> None:
    manager = BlockManager(8, 4, num_host_blocks=8)
    sequence = manager.new_sequence(range(10))
    if state != "new":
        manager.admit(sequence, max_new_tokens=5)
        manager.commit(sequence, 5)
    if state == "preempted":
        manager.preempt(sequence)
    if state == "swapped":
        assert manager.swap_out(sequence) is not None
    manager.free(sequence)
    manager.check_integrity()
    assert manager.num_available == 8 and manager.host.num_free == 8


def test_mistakes_are_named() -> None:
    manager, other = BlockManager(4, 4), BlockManager(4, 4)
    sequence = manager.new_sequence([1, 2, 3])
    with pytest.raises(CacheError, match="belongs to another manager"):
        other.admit(sequence)
    manager.admit(sequence)
    with pytest.raises(CacheError, match="has blocks"):
        manager.admit(sequence)
    with pytest.raises(CacheError, match=r"4 tokens computed of 3\n  allowed: 0 to 3"):
        manager.commit(sequence, 4)
    manager.commit(sequence, 3)
    with pytest.raises(CacheError, match="2 tokens computed of 3"):
        manager.commit(sequence, 2)
    with pytest.raises(CacheError, match="slots of positions 3 to 5"):
        manager.slot_mapping(sequence, 3, 5)
    with pytest.raises(CacheError, match="slots of positions 0 to 3"):
        manager.slot_mapping(sequence, 0, 3)  # they are computed
    with pytest.raises(CacheError, match="cut to 0 tokens of 3"):
        manager.truncate(sequence, 0)
    with pytest.raises(CacheError, match="max_new_tokens 0"):
        manager.admit(manager.new_sequence([1]), 0)
    with pytest.raises(CacheError, match="a sequence without tokens"):
        manager.new_sequence([])
    for tokens in ([1.5], [[1], [2]], ["a"], [2**31], [2**70]):
        with pytest.raises(CacheError, match="not token ids"):
            manager.new_sequence(tokens)
    with pytest.raises(CacheError, match="not a token id: 2147483648"):
        sequence.append(2**31)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "options", "message"),
    [
        (1, 4, {}, "num_blocks 1\n  allowed: 2 or more"),
        (4, 0, {}, "block_size 0"),
        (4, 257, {}, "block_size 257\n  allowed: 1 to 256"),
        (4, 4, {"window": 0}, "window 0"),
        (4, 4, {"num_host_blocks": -1}, "num_host_blocks -1"),
    ],
)
def test_impossible_pools(
    num_blocks: int, block_size: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(CacheError, match=message):
        BlockManager(num_blocks, block_size, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_two_thousand_requests_leave_every_block_behind(prefix_caching: bool) -> None:
    manager = BlockManager(40, 4, num_host_blocks=20, prefix_caching=prefix_caching)
    store, chance, live = KvStore(manager), random.Random(3), []
    for _ in range(2000):
        sequence = manager.new_sequence(chance.choices([1, 2, 3], k=chance.randint(1, 30)))
        if manager.admit(sequence, chance.randint(1, 40)) is None:
            manager.free(sequence)
        else:
            store.run(sequence, min(sequence.num_tokens, sequence.num_slots))
            live.append(sequence)
        while len(live) > 5:
            ended = live.pop(chance.randrange(len(live)))
            if chance.random() < 0.2:
                manager.swap_out(ended)
            manager.free(ended)
    for sequence in live:
        store.check(sequence)
        manager.free(sequence)
    manager.check_integrity()
    assert manager.gauges().used_blocks == 0
    assert manager.num_available == 40 and manager.host.num_free == 20
