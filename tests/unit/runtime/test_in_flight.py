"""Blocks are handed out again while the step that used them last still runs."""

from __future__ import annotations

from pagegen.runtime.block_manager import BlockManager
from tests.kv_store import KvStore


def test_work_in_flight_is_over_before_its_blocks_are_written_again() -> None:
    """Two steps deep: the second step of A is queued when A turns out to have ended."""
    manager = BlockManager(2, 2)
    store = KvStore(manager)
    a = manager.new_sequence([1, 2])
    store.start(a)
    a.append(3)
    manager.allocate(a, 3)
    late = manager.slot_mapping(a, 2, 3)
    manager.free(a)
    b = manager.new_sequence([7, 8, 9])
    assert manager.admit(b) == 0
    store.device.reshape(-1)[late] = 12345  # A's last write, queued before B's first
    store.run(b, 3)
    store.check(b)
