"""Random lives of sequences: whatever happens, each reads its own tokens and no block is lost.

A KV store whose slots name their owners stands for the device. Every allocation is also made to
fail, and one that fails, by design or for want of memory, must have changed nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagegen.errors import CacheError
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Namespace, Sequence
from tests.kv_store import KvStore

NAMESPACES = (Namespace(), Namespace(adapter="a"), Namespace(salt="s", extra=(1,)))
BLOCK_SIZES = st.one_of(st.integers(1, 8), st.sampled_from([15, 16, 17, 64, 255, 256]))


def snapshot(manager: BlockManager) -> list[Any]:
    """All state that an allocation may change."""
    rows: list[Any] = [manager.pool.free_ids.tolist(), manager.pool.ref_count.tolist()]
    rows += [manager.host.free_ids.tolist(), manager.host.ref_count.tolist()]
    rows += [(id(s.run), s.begin, s.end) for s in manager.cache.lru]
    for sequence in manager.sequences:
        host = sequence.host_blocks
        rows.append((sequence.block_table.tolist(), list(sequence.holds)))
        rows.append((sequence.num_computed, sequence.num_tokens, sequence.num_published))
        rows.append((sequence.first_block, sequence.num_slots, sequence.is_tail_shared))
        rows.append(None if host is None else host.tolist())
    return rows


class Lives(RuleBasedStateMachine):
    """Sequences are born, run, fork, lose their blocks, come back and end."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        size = data.draw(BLOCK_SIZES, "block_size")
        null = data.draw(st.booleans(), "null block")
        self.size = size
        self.manager = BlockManager(
            data.draw(st.one_of(st.integers(2, 6), st.integers(7, 24)), "num_blocks") + null,
            size,
            window=data.draw(st.one_of(st.none(), st.integers(1, 3 * size)), "window"),
            reserve_null_block=null,
            num_host_blocks=data.draw(st.integers(0, 6), "num_host_blocks"),
            prefix_caching=data.draw(st.integers(0, 4), "caching") > 0,
        )
        self.store = KvStore(self.manager)
        self.versions: dict[Sequence, int] = {}
        self.rows: dict[Sequence, Any] = {}
        self.prompts: list[list[int]] = [[0] * size]
        self.fail = False
        truth = self.manager.ledger.fits
        self.manager.ledger.fits = lambda *a, **k: not self.fail and truth(*a, **k)  # type: ignore[method-assign]

    def pick(
        self, data: st.DataObject, *, swapped: bool = False, has_blocks: bool | None = None
    ) -> Sequence | None:
        found = [s for s in self.manager.sequences if (s.host_blocks is not None) == swapped]
        if has_blocks is not None:
            found = [s for s in found if (s.num_blocks > 0) == has_blocks]
        return data.draw(st.sampled_from(found)) if found else None

    def attempt(self, action: Any) -> Any:
        """Fail on purpose, then in earnest; a failure leaves everything as it was."""
        before = snapshot(self.manager)
        self.fail = True
        assert action() in (None, ()), "it did not need the allocation, or did not notice"
        if snapshot(self.manager) != before:
            self.fail = False
            raise AssertionError("a failed allocation left traces")
        self.fail = False
        result = action()
        if result is None:
            assert snapshot(self.manager) == before, "a failed allocation left traces"
        return result

    def tokens(self, data: st.DataObject) -> list[int]:
        """A prompt: often the beginning of an earlier one, and then blocks that repeat."""
        old = data.draw(st.sampled_from(self.prompts))
        tokens = old[: data.draw(st.integers(0, len(old) // self.size)) * self.size]
        for seed in data.draw(st.lists(st.integers(0, 1), max_size=3)):
            tokens = tokens + [seed] * self.size
        tokens = tokens + [data.draw(st.integers(0, 1))] * data.draw(st.integers(0, self.size))
        return tokens[: 12 * self.size] or [1]

    @rule(data=st.data(), kind=st.sampled_from([0, 0, 0, 1, 2]))
    def arrive(self, data: st.DataObject, kind: int) -> None:
        tokens = self.tokens(data)
        self.prompts.append(tokens)
        sequence = self.manager.new_sequence(tokens, NAMESPACES[kind])
        self.versions[sequence] = self.store.weights
        self.rows[sequence] = np.full(64, -7, np.int32)
        self.let_in(data, sequence, data.draw(st.sampled_from([10**4, 10**4, 1, 3, 40])), 0)

    @rule(data=st.data(), keep=st.integers(0, 2))
    def admit(self, data: st.DataObject, keep: int) -> None:
        sequence = self.pick(data, has_blocks=False)
        if sequence is not None:
            self.let_in(data, sequence, data.draw(st.integers(1, 600)), keep)

    def let_in(self, data: st.DataObject, sequence: Sequence, chunk: int, keep: int) -> None:
        expected = self.manager.match_prefix(sequence.tokens, sequence.namespace)
        cached = self.attempt(lambda: self.manager.admit(sequence, chunk, keep_free=keep))
        if cached is not None:
            assert cached == (expected if self.manager.prefix_caching else 0)
            assert cached < sequence.num_tokens
            assert self.manager.num_available >= keep
            self.versions[sequence] = self.store.weights
            end = min(sequence.num_tokens, cached + chunk)
            assert sequence.num_slots >= end
            self.store.run(sequence, end)

    @rule(data=st.data(), spare=st.sampled_from([0, 0, 1, 9]))
    def step(self, data: st.DataObject, spare: int) -> None:
        sequence = self.pick(data, has_blocks=True)
        if sequence is not None:
            self.advance(sequence, data.draw(st.sampled_from([10**4, 1, 7, self.size])), spare)

    @rule(data=st.data(), token=st.integers(0, 1), blocks=st.integers(0, 2), more=st.booleans())
    def generate(self, data: st.DataObject, token: int, blocks: int, more: bool) -> None:
        sequence = self.pick(data, has_blocks=True)
        if sequence is None or sequence.num_tokens > 20 * self.size:
            return
        left = -sequence.num_tokens % self.size  # up to the end of the block: equal blocks meet
        count = left + blocks * self.size + more
        sequence.append([token] * count if count > 1 else token)
        self.advance(sequence, 10**4, 0)

    def advance(self, sequence: Sequence, chunk: int, spare: int) -> None:
        end = min(sequence.num_tokens, sequence.num_computed + chunk)
        if end == sequence.num_computed:
            return
        if end + spare > sequence.num_slots:
            copies = self.attempt(lambda: self.manager.allocate(sequence, end + spare))
        else:
            copies = self.manager.allocate(sequence, end + spare)
        if copies is not None:
            assert len(copies) <= 1
            self.store.copy(copies)
            self.store.run(sequence, end)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        sequence = self.pick(data, has_blocks=True)
        if sequence is not None and len(self.manager.sequences) < 12:
            child = self.manager.fork(sequence)
            self.versions[child] = self.versions[sequence]
            self.rows[child] = np.full(64, -7, np.int32)

    @rule(data=st.data(), share=st.integers(1, 9))
    def truncate(self, data: st.DataObject, share: int) -> None:
        sequence = self.pick(data)
        if sequence is None or sequence.num_tokens < 2:
            return
        cut = max(1, sequence.num_tokens * share // 20)
        before = snapshot(self.manager)
        try:
            self.manager.truncate(sequence, sequence.num_tokens - cut)
        except CacheError:
            assert self.manager.ledger.window is not None
            assert snapshot(self.manager) == before

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        sequence = self.pick(data, has_blocks=True)
        if sequence is not None:
            self.manager.preempt(sequence)

    @rule(data=st.data(), swapped=st.booleans())
    def free(self, data: st.DataObject, swapped: bool) -> None:
        sequence = self.pick(data, swapped=swapped)
        if sequence is not None:
            self.manager.free(sequence)
            before = snapshot(self.manager)
            with pytest.raises(CacheError, match="has ended"):
                self.manager.free(sequence)
            assert snapshot(self.manager) == before

    @rule(data=st.data(), group=st.integers(1, 3))
    def swap_out(self, data: st.DataObject, group: int) -> None:
        found = {s for s in (self.pick(data) for _ in range(group)) if s is not None}
        chosen = [s for s in self.manager.sequences if s in found]
        if chosen:
            before = snapshot(self.manager)
            if self.store.swap_out(*chosen) is None:
                assert snapshot(self.manager) == before

    @rule(data=st.data(), group=st.integers(1, 3))
    def swap_in(self, data: st.DataObject, group: int) -> None:
        found = {s for s in (self.pick(data, swapped=True) for _ in range(group)) if s is not None}
        chosen = [s for s in self.manager.sequences if s in found]
        if chosen:
            self.attempt(lambda: self.store.swap_in(*chosen))

    @precondition(lambda self: self.store.weights < 3)
    @rule()
    def new_weights(self) -> None:
        self.manager.reset_prefix_cache()
        self.store.weights += 1
        for sequence in self.manager.sequences:
            assert self.manager.match_prefix(sequence.tokens, sequence.namespace) == 0

    @invariant()
    def everybody_reads_their_own(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        self.store.poison_free_blocks()
        for sequence in self.manager.sequences:
            if sequence.host_blocks is None:
                self.store.check(sequence, oldest=self.versions[sequence])
                if self.manager.ledger.window is not None:
                    seen = sequence.num_computed - self.manager.ledger.window + 1
                    assert sequence.first_block == max(0, seen) // self.size, "the window"
            row = self.rows[sequence]
            sequence.write_block_table(row)
            assert (row[: sequence.num_blocks] == sequence.block_table).all()
        gauges = self.manager.gauges()
        parts = gauges.null_blocks + gauges.used_blocks + gauges.cached_blocks + gauges.free_blocks
        assert parts == gauges.num_blocks
        assert gauges.tail_waste_tokens >= 0 <= gauges.used_slots

    @invariant()
    def what_is_computed_is_found(self) -> None:
        if not hasattr(self, "manager") or self.manager.ledger.window is not None:
            return
        for sequence in self.manager.sequences:
            if sequence.num_blocks and sequence.is_publishing and self.manager.prefix_caching:
                full = min(sequence.num_computed, sequence.num_tokens - 1) // self.size
                found = self.manager.match_prefix(sequence.tokens, sequence.namespace)
                assert found >= full * self.size

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for sequence in list(self.manager.sequences):
            self.manager.free(sequence)
        self.manager.check_integrity()
        assert self.manager.num_available == self.manager.pool.num_usable
        assert self.manager.host.num_free == self.manager.host.num_usable


@pytest.mark.parametrize("steps", [30, 80])
def test_lives(steps: int) -> None:
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=150 if steps == 30 else 60,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
