"""Sequences on the host: which blocks are copied where.

It copies nothing: it returns pairs of block ids, and who calls copies before the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pagegen.errors import CacheError
from pagegen.runtime.block_pool import Ids
from pagegen.runtime.sequence import Sequence

if TYPE_CHECKING:
    from pagegen.runtime.block_manager import BlockManager


def swap_out(manager: BlockManager, sequences: tuple[Sequence, ...]) -> Ids | None:
    """Move sequences to the host. A block that several of them share is copied once.

    Returns [num_copies, 2] int64, pairs (device block, host block), or None if the host has too
    few free blocks. The device blocks may be handed out by the next call: copy first.
    """
    _check_distinct(sequences)
    ledger, host = manager.ledger, manager.host
    tables = []
    for sequence in sequences:
        manager.check(sequence)
        end = ledger.num_blocks_of(sequence.num_computed)
        tables.append(sequence.block_table[sequence.first_block : end].copy())
    blocks, counts = np.unique(_joined(tables), return_counts=True)
    if len(blocks) > host.num_free:
        manager.counters.failed_allocations += 1
        return None
    places = host.pop(len(blocks))
    host.ref_count[places] = counts
    for sequence, table in zip(sequences, tables, strict=True):
        kept = sequence.num_computed, sequence.first_block, sequence.is_publishing
        shared = sequence.is_tail_shared
        ledger.drop_blocks(sequence, 0)
        sequence.clear()
        sequence.num_computed, sequence.first_block, sequence.is_publishing = kept
        sequence.is_tail_shared = shared
        sequence.host_blocks = places[np.searchsorted(blocks, table)]
    manager.counters.swapped_out_blocks += len(blocks)
    return np.stack([blocks, places], axis=1)


def swap_in(manager: BlockManager, sequences: tuple[Sequence, ...]) -> Ids | None:
    """Bring sequences back. What the prefix cache still has is not copied.

    Returns [num_copies, 2] int64, pairs (host block, device block), or None if the device has too
    few blocks. The full blocks are findable at once: copy before the next step.
    """
    _check_distinct(sequences)
    ledger, cache, host = manager.ledger, manager.cache, manager.host
    plans = []
    for sequence in sequences:
        if sequence.host_blocks is None:
            manager.check(sequence)
            raise CacheError("the sequence is not swapped out", remedy="use admit or allocate")
        first, full = sequence.first_block, sequence.num_computed // manager.block_size
        looked_up = manager.prefix_caching and sequence.is_publishing
        path = cache.match(sequence.tokens, sequence.namespace, full) if looked_up else []
        if path and path[-1].end < first:
            path = []  # too short to follow: the window has left it behind
        ids = ledger.blocks_of(path, first).copy()
        plans.append((sequence, path, first, ids, sequence.host_blocks[len(ids) :]))
    wanted = np.unique(_joined([ids for _, _, _, ids, _ in plans]))
    sources, counts = np.unique(_joined([rest for *_, rest in plans]), return_counts=True)
    if not ledger.fits(len(sources), wanted):
        return None
    computed = [sequence.num_computed for sequence in sequences]
    for sequence, path, first, ids, _ in plans:
        ledger.adopt(sequence, path, first, ids)
        if first and not path:
            sequence.is_publishing = False
    targets = ledger.take(len(sources))
    manager.pool.ref_count[targets] = counts
    for (sequence, *_, rest), num_computed in zip(plans, computed, strict=True):
        assert sequence.host_blocks is not None
        sequence.extend_table(targets[np.searchsorted(sources, rest)])
        sequence.num_slots = sequence.num_blocks * manager.block_size
        sequence.num_computed = num_computed
        host.release(sequence.host_blocks)
        sequence.host_blocks = None
    for sequence in sequences:
        full = sequence.num_computed // manager.block_size
        if manager.prefix_caching and sequence.is_publishing and full > sequence.num_published:
            ledger.publish(sequence, full)
    manager.counters.swapped_in_blocks += len(sources)
    return np.stack([sources, targets], axis=1)


def _check_distinct(sequences: tuple[Sequence, ...]) -> None:
    if not sequences or len(set(sequences)) < len(sequences):
        raise CacheError(f"{len(sequences)} sequences", allowed="one or more, each once")


def _joined(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
