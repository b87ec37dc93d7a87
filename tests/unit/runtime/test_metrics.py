"""What a manager counts, and how it looks to Prometheus."""

from __future__ import annotations

import re

from pagegen.runtime.block_manager import BlockManager
from tests.kv_store import KvStore


def test_gauges_add_up_to_the_pool() -> None:
    manager = BlockManager(10, 4, reserve_null_block=True)
    store = KvStore(manager)
    first = manager.new_sequence(range(8))
    store.start(first)
    manager.free(first)
    second = manager.new_sequence(range(50, 56))
    store.start(second)
    gauges = manager.gauges()
    assert (gauges.null_blocks, gauges.used_blocks) == (1, 2)
    assert (gauges.cached_blocks, gauges.free_blocks) == (2, 5)
    assert (gauges.used_slots, gauges.tail_waste_tokens) == (6, 2)


def test_a_shared_tail_wastes_its_slots_once() -> None:
    manager = BlockManager(10, 4)
    store = KvStore(manager)
    parent = manager.new_sequence(range(5))
    store.start(parent)
    children = [manager.fork(parent) for _ in range(3)]
    assert manager.gauges().tail_waste_tokens == 3
    assert manager.gauges().used_slots == 5
    children[0].append(1)
    assert store.step(children[0], 6)
    assert manager.gauges().tail_waste_tokens == 3 + 2


def test_every_event_is_counted() -> None:
    manager = BlockManager(4, 4, num_host_blocks=4)
    store = KvStore(manager)
    first = manager.new_sequence(range(9))
    store.start(first)
    manager.preempt(first)
    store.start(first)
    child = manager.fork(first)
    child.append(1)
    assert store.step(child, 10)
    manager.free(first)
    assert store.swap_out(child) == 3
    other = manager.new_sequence(range(100, 113))
    store.start(other)
    assert store.swap_in(child) is None
    counters = manager.counters
    assert (counters.prefix_queries_tokens, counters.prefix_hits_tokens) == (9 + 9 + 13, 8)
    assert (counters.allocated_blocks, counters.evicted_blocks) == (3 + 1 + 1 + 4, 2)
    assert (counters.forks, counters.copied_blocks, counters.preemptions) == (1, 1, 1)
    assert (counters.swapped_out_blocks, counters.failed_allocations) == (3, 1)


def test_prometheus_text() -> None:
    manager = BlockManager(4, 4)
    text = manager.prometheus()
    assert "# TYPE pagegen_kv_tail_waste_tokens gauge\npagegen_kv_tail_waste_tokens 0\n" in text
    assert (
        "# HELP pagegen_kv_evicted_blocks_total cached blocks given to others\n"
        "# TYPE pagegen_kv_evicted_blocks_total counter\n"
        "pagegen_kv_evicted_blocks_total 0\n"
    ) in text
    sample = re.compile(r"(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+ \d+)")
    assert all(sample.fullmatch(line) for line in text.splitlines())
    assert text.endswith("\n")
