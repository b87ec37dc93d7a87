"""What is found again, by whom, since when, and what goes first when memory is short."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Namespace, Sequence
from tests.kv_store import KvStore

Made = tuple[BlockManager, KvStore]


def make(num_blocks: int, block_size: int = 4) -> Made:
    manager = BlockManager(num_blocks, block_size)
    return manager, KvStore(manager)


def serve(made: Made, tokens: list[int], namespace: Namespace | None = None) -> Sequence:
    """Compute a prompt and leave it running."""
    manager, store = made
    sequence = manager.new_sequence(tokens, namespace or Namespace())
    store.start(sequence)
    return sequence


def test_an_equal_prefix_is_found_in_whole_blocks() -> None:
    made = make(8)
    serve(made, list(range(10)))
    manager, _ = made
    assert manager.match_prefix(range(10)) == 8
    assert manager.match_prefix([0, 1, 2, 3, 4, 5, 6, 9, 8]) == 4
    assert manager.match_prefix([9, 1, 2, 3, 4]) == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    made = make(8)
    serve(made, list(range(8)))
    again = serve(made, list(range(8)))
    made[1].check(again)
    assert made[0].counters.prefix_hits_tokens == 4
    assert again.num_computed == 8
    assert made[0].match_prefix(range(9)) == 8


def test_a_long_prompt_goes_on_behind_its_cached_block() -> None:
    made = make(8, 256)
    serve(made, list(range(256)))
    sequence = made[0].new_sequence(range(465))
    assert made[0].admit(sequence) == 256
    assert len(made[0].slot_mapping(sequence, 256, 465)) == 209


@pytest.mark.parametrize(
    "other",
    [
        [321, 66, 67, 68, 1],  # the low byte of 321 is 65
        [65, 66, 67, 69, 1],  # only the last token differs
        [66, 65, 67, 68, 1],
        [-65, 66, 67, 68, 1],
    ],
)
def test_no_other_prompt_is_ever_found(other: list[int]) -> None:
    made = make(8)
    serve(made, [65, 66, 67, 68])
    assert made[0].match_prefix(other) == 0


def test_an_equal_block_after_another_prefix_is_another_block() -> None:
    made = make(16)
    serve(made, [1, 1, 1, 1, 5, 5, 5, 5])
    serve(made, [2, 2, 2, 2, 6, 6, 6, 6])
    assert made[0].match_prefix([2, 2, 2, 2, 5, 5, 5, 5, 0]) == 4
    assert made[0].match_prefix([5, 5, 5, 5, 0]) == 0


def test_hashes_that_collide_mislead_nobody() -> None:
    """Python's hash of the edges is made useless: the tokens still decide."""

    class Blunt(bytes):
        def __hash__(self) -> int:
            return 7

    made = make(64)
    cache = made[0].cache
    sharp = cache.edge
    cache.edge = lambda *place: (sharp(*place)[0], Blunt(sharp(*place)[1]))  # type: ignore[method-assign]
    chance = random.Random(5)
    for _ in range(100):
        sequence = serve(made, chance.choices([1, 2], k=10))
        made[1].check(sequence)
        made[0].free(sequence)
        made[0].check_integrity()
    assert made[0].counters.prefix_hits_tokens > 0


@pytest.mark.parametrize(
    "namespace",
    [Namespace(adapter="lora-1"), Namespace(salt="tenant"), Namespace(extra=("image", 3))],
)
def test_namespaces_share_nothing(namespace: Namespace) -> None:
    made = make(16)
    serve(made, list(range(9)))
    assert made[0].match_prefix(range(9), namespace) == 0
    theirs = serve(made, list(range(9)), namespace)
    assert made[0].match_prefix(range(9), namespace) == 8
    made[1].check(theirs)


def test_nothing_is_found_before_it_is_computed() -> None:
    manager, store = make(8)
    a, b = manager.new_sequence(range(12)), manager.new_sequence(range(12))
    assert manager.admit(a) == 0
    assert manager.admit(b) == 0  # the same step: A's blocks hold nothing yet
    manager.free(a)  # the step is cancelled
    assert manager.match_prefix(range(12)) == 0
    store.run(b, 12)
    store.check(b)


def test_a_block_is_found_once_it_is_full() -> None:
    manager, store = make(8, 8)
    sequence = manager.new_sequence(range(20))
    found = []
    manager.admit(sequence, 6)
    for end in (6, 12, 18, 20):
        assert store.step(sequence, end)
        found.append(manager.match_prefix(range(21)))
    assert found == [0, 8, 16, 16]
    for token in range(20, 24):
        assert manager.match_prefix(range(25)) == 16
        sequence.append(token)
        assert store.step(sequence, token + 1)
    assert manager.match_prefix(range(25)) == 24


def test_two_that_computed_the_same_share_one_block_afterwards() -> None:
    manager, store = make(8)
    a, b = manager.new_sequence(range(8)), manager.new_sequence(range(8))
    manager.admit(a)
    manager.admit(b)
    assert manager.num_available == 4
    store.run(a, 8)
    row = np.zeros(2, np.int32)
    b.write_block_table(row)
    store.run(b, 8)
    assert b.block_table.tolist() == a.block_table.tolist()
    assert b.write_block_table(row) == (0, 2)  # the rewritten columns
    assert manager.num_available == 6
    assert manager.counters.merged_blocks == 2
    manager.free(a)
    for token in range(100, 110):  # B decodes on while others take blocks
        b.append(token)
        assert store.step(b, b.num_tokens)
        other = manager.new_sequence([token] * 5)
        store.start(other)
        manager.free(other)
        store.poison_free_blocks()
        store.check(b)


def test_the_end_of_a_chain_is_evicted_first() -> None:
    made = make(4)
    manager = made[0]
    manager.free(serve(made, list(range(12))))
    assert manager.match_prefix(range(13)) == 12
    serve(made, [50, 51, 52, 53, 54])  # the free block, and one more
    assert manager.match_prefix(range(13)) == 8
    manager.check_integrity()


def test_what_was_used_last_stays_longest() -> None:
    made = make(6)
    manager = made[0]
    for first in (10, 20, 30):
        manager.free(serve(made, [first] * 8))
    manager.free(serve(made, [10] * 4 + [11]))  # touches the first block of the oldest
    manager.free(serve(made, [40] * 5))
    left = [manager.match_prefix([first] * 9) for first in (10, 20, 30, 40)]
    assert left == [4, 4, 8, 4]


def test_an_evicted_block_is_not_found_for_its_old_tokens() -> None:
    made = make(3)
    manager, store = made
    manager.free(serve(made, list(range(12))))
    b = serve(made, list(range(50, 62)))
    assert manager.match_prefix(range(13)) == 0
    store.check(b)


def test_a_failed_admission_leaves_the_cache_as_it_was() -> None:
    made = make(3)
    manager = made[0]
    manager.free(serve(made, list(range(8))))
    ages = [(segment.begin, segment.end) for segment in manager.cache.lru]
    longer = manager.new_sequence(list(range(8)) + [9] * 9)
    assert manager.admit(longer) is None  # two hits, and three more than there are
    assert [(segment.begin, segment.end) for segment in manager.cache.lru] == ages
    assert manager.match_prefix(range(9)) == 8
    assert manager.num_available == 3


def test_cached_blocks_that_are_wanted_do_not_count_as_room() -> None:
    made = make(4)
    manager = made[0]
    manager.free(serve(made, list(range(12))))
    sequence = manager.new_sequence([*list(range(12)), 1, 2, 3, 4, 5])
    assert manager.num_available == 4
    assert manager.admit(sequence) is None  # two more than three hits, of four
    assert manager.admit(sequence, max_new_tokens=4) == 12


def test_books_balance_over_ten_thousand_steps() -> None:
    made = make(32)
    manager, store = made
    chance = random.Random(11)
    live: list[Sequence] = []
    for step in range(10_000):
        if live and chance.random() < 0.5:
            manager.free(live.pop(chance.randrange(len(live))))
        else:
            sequence = manager.new_sequence(chance.choices([1, 2], k=chance.randint(1, 24)))
            if manager.admit(sequence) is None:
                manager.free(sequence)
            else:
                store.run(sequence, sequence.num_tokens)
                live.append(sequence)
        if step % 50 == 0:
            manager.check_integrity()
    assert manager.counters.evicted_blocks > 100
    assert manager.counters.prefix_hits_tokens > 1000


def test_reset_hides_everything_that_the_old_weights_computed() -> None:
    made = make(16)
    manager, store = made
    manager.free(serve(made, list(range(8))))
    running = serve(made, [*list(range(8)), 5, 5, 5])
    assert manager.reset_prefix_cache() == 1  # one keeps its blocks
    store.weights += 1
    assert manager.match_prefix(range(9)) == 0
    running.append([6] * 8)
    assert store.step(running, running.num_tokens)
    assert manager.match_prefix(running.tokens) == 0  # its KV is of two versions
    store.check(running)
    fresh = serve(made, list(range(9)))
    store.check(fresh, oldest=1)
    assert manager.match_prefix(range(9)) == 8
    manager.free(running)
    manager.check_integrity()


def test_memory_does_not_grow_with_namespaces() -> None:
    made = make(4)
    for number in range(200):
        made[0].free(serve(made, [1, 2, 3, 4], Namespace(salt=str(number))))
    assert len(made[0].cache.root.children) <= 4


def test_a_run_gives_back_the_memory_of_what_was_evicted() -> None:
    made = make(100, 1)
    manager = made[0]
    manager.free(serve(made, list(range(100))))
    manager.free(serve(made, [0, 1]))
    serve(made, list(range(1000, 1098)))
    (run,) = (one for one in manager.cache.root.children.values() if one.tokens[0] == 0)
    assert run.length == 2 and len(run.tokens) < 10
