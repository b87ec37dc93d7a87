"""Who owns which KV block: tables, sharing, copy-on-write, eviction and swap.

It knows no tensor and no policy. Every method first decides, then changes: one that says that
memory is short has changed nothing. Calls must reach the device in the order in which they were
made (one stream): a block may be handed out again while the step that used it last still runs.

A step of a scheduler:

    cached = manager.admit(sequence, chunk)           # new or preempted; None: does not fit
    copies = manager.allocate(sequence, num_tokens)   # running; None: does not fit
    ops.copy_blocks(k_cache, v_cache, copies); write table rows; run the model
    manager.commit(sequence, num_computed)            # publishes what is full, moves the window
    sequence.append(token)

Paged KV with copy-on-write is vLLM's (PagedAttention, Kwon et al., 2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagegen.errors import CacheError
from pagegen.runtime import integrity, swap
from pagegen.runtime.block_pool import BlockPool, Ids
from pagegen.runtime.ledger import Ledger
from pagegen.runtime.metrics import Gauges, prometheus, read_gauges
from pagegen.runtime.sequence import Namespace, Sequence, as_tokens

MAX_BLOCK_SIZE = 256
DEFAULT = Namespace()
Copies = tuple[tuple[int, int], ...]  # (from, to) block ids, for ops.copy_blocks


class BlockManager:
    """Blocks of `block_size` tokens, `num_blocks` on the device and `num_host_blocks` for swap.

    window: tokens that a query sees, its own included; blocks that no query to come can see are
    given back, and their columns hold `null_block`: 0 with reserve_null_block, which is then never
    handed out, -1 otherwise. Raises CacheError for sizes that no pool can have.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        window: int | None = None,
        reserve_null_block: bool = False,
        num_host_blocks: int = 0,
        prefix_caching: bool = True,
    ) -> None:
        _at_least("num_blocks", num_blocks, 2)
        _at_least("block_size", block_size, 1)
        _at_least("num_host_blocks", num_host_blocks, 0)
        _at_least("window", 1 if window is None else window, 1)
        if block_size > MAX_BLOCK_SIZE:
            raise CacheError(f"block_size {block_size}", allowed=f"1 to {MAX_BLOCK_SIZE}")
        self.block_size = block_size
        self.ledger = Ledger(num_blocks, block_size, window, has_null_block=reserve_null_block)
        self.pool = self.ledger.pool
        self.cache = self.ledger.cache
        self.counters = self.ledger.counters
        self.null_block = self.ledger.null_block
        self.host = BlockPool(num_host_blocks)
        self.prefix_caching = prefix_caching
        self.sequences: dict[Sequence, None] = {}  # not freed, in order of arrival

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: free, or cached and held by nobody."""
        return self.pool.num_free + self.cache.num_evictable

    @property
    def max_tokens(self) -> int:
        """Slots of the whole pool. Without a window, a longer sequence can never fit."""
        return self.pool.num_usable * self.block_size

    def new_sequence(self, tokens: ArrayLike, namespace: Namespace = DEFAULT) -> Sequence:
        """A sequence that holds no blocks yet. tokens: [num_tokens] ids, at least one."""
        sequence = Sequence(tokens, namespace)
        if sequence.num_tokens == 0:
            raise CacheError("a sequence without tokens", allowed="at least one token")
        self.sequences[sequence] = None
        return sequence

    def match_prefix(self, tokens: ArrayLike, namespace: Namespace = DEFAULT) -> int:
        """How many leading tokens a sequence would find computed. Changes nothing.

        Whole blocks, and never the last token: its logits are wanted, so it is computed.
        """
        found = as_tokens(tokens)
        path = self.cache.match(found, namespace, (len(found) - 1) // self.block_size)
        return path[-1].end * self.block_size if path else 0

    def admit(
        self, sequence: Sequence, max_new_tokens: int | None = None, *, keep_free: int = 0
    ) -> int | None:
        """Give a sequence without blocks its cached prefix, and slots for the tokens that follow.

        max_new_tokens: of the uncached ones, all by default. keep_free: blocks that must stay
        available besides (a watermark). Returns the number of cached tokens, from which the
        computation goes on, or None if it does not fit.
        """
        self.check(sequence, has_blocks=False)
        size, total = self.block_size, sequence.num_tokens
        limit = (sequence.num_tokens - 1) // size if self.prefix_caching else 0
        path = self.cache.match(sequence.tokens, sequence.namespace, limit) if limit else []
        end = path[-1].end if path else 0
        if max_new_tokens is not None:
            _at_least("max_new_tokens", max_new_tokens, 1)
            total = min(total, end * size + max_new_tokens)
        first = self.ledger.first_needed(end * size)
        ids = self.ledger.blocks_of(path, first)
        if not self.ledger.fits(self.ledger.num_blocks_of(total) - end, ids, keep_free):
            return None
        sequence.reserve(self.ledger.num_blocks_of(total))
        self.ledger.adopt(sequence, path, first, ids)
        self.ledger.add_blocks(sequence, self.ledger.num_blocks_of(total) - end)
        self.counters.prefix_queries_tokens += sequence.num_tokens
        self.counters.prefix_hits_tokens += end * size
        return end * size

    def allocate(self, sequence: Sequence, num_tokens: int) -> Copies | None:
        """Make sure that the table has slots for the tokens [num_computed, num_tokens).

        Returns the blocks to copy before they are written, () as a rule, or None if the pool is
        too small just now. More slots than tokens are known may be asked for (speculation). A
        block that somebody else reads is copied; a published block is never written.
        """
        if num_tokens <= sequence.num_slots and not sequence.is_tail_shared:
            return ()
        self.check(sequence)
        missing = max(0, self.ledger.num_blocks_of(num_tokens) - sequence.num_blocks)
        column = sequence.num_computed // self.block_size
        copy = False
        if sequence.is_tail_shared and num_tokens > sequence.num_computed:
            copy = int(self.pool.ref_count[sequence.block_table[column]]) > 1
        if not self.ledger.fits(missing + copy):
            return None
        copies: Copies = ()
        if copy:
            source = int(sequence.block_table[column])
            target = int(self.ledger.take(1)[0])
            self.pool.ref_count[source] -= 1
            sequence.replace_blocks(column, target)
            self.counters.copied_blocks += 1
            copies = ((source, target),)
        if num_tokens > sequence.num_computed:
            sequence.is_tail_shared = False
        self.ledger.add_blocks(sequence, missing)
        return copies

    def commit(self, sequence: Sequence, num_computed: int) -> None:
        """The KV of the tokens [0, num_computed) is in the cache; nothing is published before.

        Full blocks become findable. Where an equal block is already there, the table takes that
        one and the duplicate is given back: write_block_table writes the changed columns.
        """
        limit = sequence.num_computed if sequence.is_tail_shared else sequence.num_slots
        if not sequence.num_computed <= num_computed <= min(limit, sequence.num_tokens):
            self.check(sequence)
            raise CacheError(
                f"{num_computed} tokens computed of {sequence.num_tokens}",
                allowed=f"{sequence.num_computed} to {min(limit, sequence.num_tokens)}",
                remedy="allocate first, after fork too; to go back, use truncate",
            )
        sequence.num_computed = num_computed
        num_full = num_computed // self.block_size
        if num_full > sequence.num_published and sequence.is_publishing and self.prefix_caching:
            self.ledger.publish(sequence, num_full)
        if self.ledger.window is not None:
            first = self.ledger.first_needed(num_computed)
            if first > sequence.first_block:
                self.ledger.leave_behind(sequence, first)

    def fork(self, parent: Sequence) -> Sequence:
        """A sequence with the same tokens that shares all computed blocks. Allocates nothing.

        Of a block that is shared half full, whoever writes first gets a copy (`allocate`); the
        last one writes in place. Slots that hold nothing computed stay with the parent.
        """
        self.check(parent)
        child = Sequence(parent.tokens, parent.namespace)
        end = self.ledger.num_blocks_of(parent.num_computed)
        table = parent.block_table[:end]
        child.extend_table(table)
        child.num_slots = end * self.block_size
        child.first_block, child.num_computed = parent.first_block, parent.num_computed
        child.num_published, child.holds = parent.num_published, list(parent.holds)
        child.is_publishing = parent.is_publishing
        self.pool.ref_count[table[child.first_block :]] += 1
        if parent.num_computed % self.block_size:
            parent.is_tail_shared = child.is_tail_shared = True
        self.sequences[child] = None
        self.counters.forks += 1
        return child

    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Forget the tokens from `num_tokens` on and give back the blocks behind them.

        A published block that would have to be written again is dropped, so `num_computed` may
        come down to a multiple of the block size. Tokens left behind by a window stay out of
        reach: CacheError.
        """
        self.check(sequence)
        kept = min(sequence.num_computed, num_tokens)
        if kept < sequence.num_published * self.block_size:
            kept = kept // self.block_size * self.block_size
        lowest = sequence.first_block * self.block_size
        if not max(1, lowest) <= num_tokens <= sequence.num_tokens or (
            self.ledger.first_needed(kept) < sequence.first_block
        ):
            raise CacheError(f"cut to {num_tokens} tokens of {sequence.num_tokens}")
        end = self.ledger.num_blocks_of(kept)
        self.ledger.drop_blocks(sequence, end)
        sequence.num_tokens, sequence.num_computed = num_tokens, kept
        sequence.is_tail_shared = kept % self.block_size > 0  # perhaps: allocate looks

    def preempt(self, sequence: Sequence) -> None:
        """Take all blocks away; the tokens stay, and admit starts again from what is cached."""
        self.check(sequence)
        self.ledger.drop_blocks(sequence, 0)
        sequence.clear()
        self.counters.preemptions += 1

    def free(self, sequence: Sequence) -> None:
        """End a sequence in whatever state it is. Raises CacheError if it has ended before."""
        if sequence not in self.sequences:
            self.check(sequence)
        if sequence.host_blocks is not None:
            self.host.release(sequence.host_blocks)
        self.ledger.drop_blocks(sequence, 0)
        sequence.clear()
        sequence.is_freed = True
        del self.sequences[sequence]

    def slot_mapping(self, sequence: Sequence, begin: int, end: int) -> NDArray[np.int64]:
        """Where the KV of positions [begin, end) goes: [end - begin] int64 for ops.write_kv.

        Raises CacheError for positions without slots, or in a block that others may read.
        """
        if not sequence.num_computed <= begin <= end <= sequence.num_slots or (
            sequence.is_tail_shared
        ):
            raise CacheError(
                f"slots of positions {begin} to {end}",
                allowed=f"{sequence.num_computed} to {sequence.num_slots}",
                remedy="call allocate before, and not after fork",
            )
        positions = np.arange(begin, end, dtype=np.int64)
        columns, offsets = np.divmod(positions, self.block_size)
        blocks = sequence.block_table[columns].astype(np.int64)
        return blocks * self.block_size + offsets

    def swap_out(self, *sequences: Sequence) -> Ids | None:
        """Move sequences to the host; see runtime/swap.py. Shared blocks are copied once."""
        return swap.swap_out(self, sequences)

    def swap_in(self, *sequences: Sequence) -> Ids | None:
        """Bring sequences that were swapped out together back; see runtime/swap.py."""
        return swap.swap_in(self, sequences)

    def reset_prefix_cache(self) -> int:
        """Let nothing that was computed so far be found again, as after a change of weights.

        Running sequences keep their blocks and publish no more. Returns how many there are.
        """
        stale = [sequence for sequence in self.sequences if sequence.num_computed]
        for sequence in stale:
            sequence.is_publishing = False
        self.cache.clear()
        return len(stale)

    def gauges(self) -> Gauges:
        """The pool now. O(number of sequences): for a scrape, not for every step."""
        return read_gauges(self)

    def prometheus(self) -> str:
        """Gauges and counters as Prometheus text."""
        return prometheus(self.gauges(), self.counters)

    def check_integrity(self) -> None:
        """Recount everything. Raises AssertionError at the first book that does not balance."""
        integrity.check(self)

    def check(self, sequence: Sequence, *, has_blocks: bool | None = None) -> None:
        """Whether a sequence is this manager's and on the device. Raises CacheError."""
        if sequence not in self.sequences:
            state = "has ended" if sequence.is_freed else "belongs to another manager"
            raise CacheError(f"the sequence {state}", remedy="make a new one with new_sequence")
        if sequence.host_blocks is not None:
            raise CacheError("the sequence is swapped out", remedy="call swap_in before")
        if has_blocks is False and sequence.num_blocks:
            raise CacheError("the sequence has blocks", remedy="use allocate to add more")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise CacheError(f"{name} {value}", allowed=f"{least} or more")
