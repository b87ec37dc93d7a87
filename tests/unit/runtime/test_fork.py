"""Several continuations of one prompt: what is shared, what is copied, and when."""

from __future__ import annotations

import numpy as np
import pytest

from pagegen.errors import CacheError
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Sequence
from tests.kv_store import KvStore


def prompt(length: int, **options: bool) -> tuple[BlockManager, KvStore, Sequence]:
    manager = BlockManager(16, 4, **options)
    store = KvStore(manager)
    sequence = manager.new_sequence(range(length))
    store.start(sequence)
    return manager, store, sequence


def test_a_half_full_block_is_copied_before_it_is_written() -> None:
    manager, store, parent = prompt(6)
    children = [parent, manager.fork(parent), manager.fork(parent)]
    shared, tail = (int(block) for block in parent.block_table)
    assert manager.pool.ref_count[[shared, tail]].tolist() == [3, 3]
    assert manager.gauges().used_blocks == 2
    copies = []
    for child, token in zip(children, (11, 22, 33), strict=True):
        child.append(token)
        made = manager.allocate(child, 7)
        assert made is not None
        store.copy(made)
        store.run(child, 7)
        copies += [source for source, _ in made]
    assert copies == [tail, tail]  # all but the last one to write
    assert children[2].block_table[1] == tail
    assert {int(child.block_table[0]) for child in children} == {shared}
    for child in children:
        store.check(child)
    manager.free(children[1])
    store.poison_free_blocks()
    store.check(children[0])
    store.check(children[2])
    assert manager.counters.copied_blocks == 2


def test_nothing_is_copied_at_the_end_of_a_block() -> None:
    manager, store, parent = prompt(8)
    child = manager.fork(parent)
    for one, token in ((parent, 1), (child, 2)):
        one.append(token)
        assert manager.allocate(one, 9) == ()
        store.run(one, 9)
        store.check(one)
    assert manager.pool.ref_count[parent.block_table].tolist() == [2, 2, 1]


def test_a_child_that_ends_before_it_writes_costs_nothing() -> None:
    manager, store, parent = prompt(6)
    manager.free(manager.fork(parent))
    parent.append(1)
    assert manager.allocate(parent, 7) == ()
    store.run(parent, 7)
    assert manager.counters.copied_blocks == 0


def test_a_copy_that_does_not_fit_changes_nothing() -> None:
    manager = BlockManager(2, 4)
    store = KvStore(manager)
    parent = manager.new_sequence(range(6))
    store.start(parent)
    child = manager.fork(parent)
    child.append(1)
    assert manager.allocate(child, 7) is None
    assert child.block_table.tolist() == parent.block_table.tolist()
    manager.free(parent)
    assert manager.allocate(child, 7) == ()  # nobody else reads it now
    store.run(child, 7)
    store.check(child)


def test_a_shared_block_has_no_slots_to_write() -> None:
    manager, _, parent = prompt(6)
    child = manager.fork(parent)
    child.append(1)
    with pytest.raises(CacheError, match="slots of positions 6 to 7"):
        manager.slot_mapping(child, 6, 7)
    with pytest.raises(CacheError, match="7 tokens computed of 7"):
        manager.commit(child, 7)


def test_slots_that_hold_nothing_stay_with_the_parent() -> None:
    manager, _, parent = prompt(6)
    manager.allocate(parent, 14)
    child = manager.fork(parent)
    assert (parent.num_blocks, child.num_blocks) == (4, 2)


def test_beams_fork_and_end_at_every_step() -> None:
    manager, store, first = prompt(5)
    beams = [first]
    for step in range(40):
        parents = [beams[0], beams[0], beams[-1]]
        children = [manager.fork(parent) for parent in parents]
        for beam in beams:
            manager.free(beam)
        for rank, child in enumerate(children):
            child.append(10 * step + rank)
            assert store.step(child, child.num_tokens)
        beams = children[:2]
        manager.free(children[2])
        manager.check_integrity()
        store.poison_free_blocks()
        for beam in beams:
            store.check(beam)
            manager.truncate(beam, beam.num_tokens)
        if len(beams[0].tokens) > 30:
            break
    assert manager.counters.copied_blocks > 10


def test_children_of_a_prompt_without_prefix_cache_share_all_the_same() -> None:
    manager, store, parent = prompt(9, prefix_caching=False)
    child = manager.fork(parent)
    assert manager.gauges().used_blocks == 3
    manager.free(parent)
    store.poison_free_blocks()
    store.check(child)
    assert np.unique(child.block_table).size == 3
