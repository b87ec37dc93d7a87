"""What a block manager counts, and how it looks to Prometheus.

It changes nothing: it reads a manager's state, and writes text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagegen.runtime.block_manager import BlockManager


@dataclass(slots=True)
class Counters:
    """Events since the start. They only grow."""

    prefix_queries_tokens: int = field(default=0, metadata={"help": "tokens looked up"})
    prefix_hits_tokens: int = field(default=0, metadata={"help": "tokens found in the cache"})
    allocated_blocks: int = field(default=0, metadata={"help": "blocks handed out"})
    failed_allocations: int = field(default=0, metadata={"help": "requests that did not fit"})
    evicted_blocks: int = field(default=0, metadata={"help": "cached blocks given to others"})
    merged_blocks: int = field(default=0, metadata={"help": "duplicates replaced by the original"})
    copied_blocks: int = field(default=0, metadata={"help": "shared tails copied before a write"})
    forks: int = field(default=0, metadata={"help": "sequences forked"})
    preemptions: int = field(default=0, metadata={"help": "sequences that lost their blocks"})
    window_blocks: int = field(default=0, metadata={"help": "blocks left behind by the window"})
    swapped_out_blocks: int = field(default=0, metadata={"help": "blocks copied to the host"})
    swapped_in_blocks: int = field(default=0, metadata={"help": "blocks copied from the host"})


@dataclass(frozen=True, slots=True)
class Gauges:
    """The pool at one moment: num_blocks = null + used + cached + free."""

    num_blocks: int = field(metadata={"help": "blocks of the pool"})
    null_blocks: int = field(metadata={"help": "blocks reserved as null"})
    used_blocks: int = field(metadata={"help": "blocks that a sequence holds"})
    cached_blocks: int = field(metadata={"help": "blocks nobody holds, kept for their prefix"})
    free_blocks: int = field(metadata={"help": "blocks with nothing in them"})
    num_sequences: int = field(metadata={"help": "sequences with blocks"})
    used_slots: int = field(metadata={"help": "slots of used blocks that hold a computed token"})
    tail_waste_tokens: int = field(metadata={"help": "slots of used blocks without a token"})
    host_used_blocks: int = field(metadata={"help": "host blocks that hold swapped sequences"})
    host_free_blocks: int = field(metadata={"help": "host blocks with nothing in them"})


def read_gauges(manager: BlockManager) -> Gauges:
    """A manager's pool now. O(number of sequences)."""
    size = manager.block_size
    used = manager.pool.num_usable - manager.num_available
    waste, holding = 0, 0
    tails: set[int] = set()
    for sequence in manager.sequences:
        if sequence.num_blocks == 0:
            continue
        holding += 1
        waste += sequence.num_slots - sequence.num_computed
        if sequence.is_tail_shared:
            tail = int(sequence.block_table[sequence.num_computed // size])
            if tail in tails:  # its empty slots are counted already
                waste -= -sequence.num_computed % size
            tails.add(tail)
    return Gauges(
        num_blocks=manager.pool.num_blocks,
        null_blocks=manager.pool.first,
        used_blocks=used,
        cached_blocks=manager.cache.num_evictable,
        free_blocks=manager.pool.num_free,
        num_sequences=holding,
        used_slots=used * size - waste,
        tail_waste_tokens=waste,
        host_used_blocks=manager.host.num_usable - manager.host.num_free,
        host_free_blocks=manager.host.num_free,
    )


def prometheus(gauges: Gauges, counters: Counters, prefix: str = "pagegen_kv") -> str:
    """Both in Prometheus' text exposition format 0.0.4."""
    lines: list[str] = []
    for kind, source, suffix in (("gauge", gauges, ""), ("counter", counters, "_total")):
        values = asdict(source)
        for name, declared in source.__dataclass_fields__.items():
            full = f"{prefix}_{name}{suffix}"
            lines += [
                f"# HELP {full} {declared.metadata['help']}",
                f"# TYPE {full} {kind}",
                f"{full} {values[name]}",
            ]
    return "\n".join(lines) + "\n"
