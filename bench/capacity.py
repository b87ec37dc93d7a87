"""How many requests fit: a closed loop over a trace, with paging and with contiguous memory.

The model: all requests wait from the start, in the order of the trace, and as many run as fit.
A step lets every running request produce one token; a prompt is computed in the step in which it
is admitted. A request that finds no block sends the youngest back to the head of the queue, where
it starts again (recompute). Means are over steps, until the queue is empty. Nothing is drawn at
random, and nothing is sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence as Items
from dataclasses import dataclass

import numpy as np

from bench.traces import Request
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.sequence import Sequence

WATERMARK = 0.01  # of the blocks stay free when a request is admitted
GAUGE_STEPS = 1000  # the manager's own gauge is compared with the model's count so often


@dataclass(frozen=True)
class Capacity:
    """What a closed loop found. Shares are of the memory that is set aside for requests."""

    policy: str
    mean_concurrency: float
    peak_concurrency: int
    wasted_share: float
    tail_waste: float  # empty slots over slots with a token
    hit_rate: float  # of all prompt tokens, those found in the cache
    preemptions: int
    rejections: int  # longer than the whole memory
    steps: int


class _Means:
    """Sums over steps."""

    def __init__(self) -> None:
        self.steps = self.running = self.tokens = self.reserved = self.peak = 0

    def add(self, steps: int, running: int, tokens: int, reserved: int) -> None:
        self.steps += steps
        self.running += steps * running
        self.tokens += steps * tokens
        self.reserved += steps * reserved
        self.peak = max(self.peak, running)

    def result(self, policy: str, hits: float, preemptions: int, rejections: int) -> Capacity:
        return Capacity(
            policy=policy,
            mean_concurrency=self.running / max(1, self.steps),
            peak_concurrency=self.peak,
            wasted_share=1 - self.tokens / max(1, self.reserved),
            tail_waste=(self.reserved - self.tokens) / max(1, self.tokens),
            hit_rate=hits,
            preemptions=preemptions,
            rejections=rejections,
            steps=self.steps,
        )


def contiguous(
    requests: Items[Request], num_slots: int, policy: str, reserve: Callable[[Request], int]
) -> Capacity:
    """Each request sets `reserve(request)` slots aside, in one piece, for as long as it runs."""
    waiting = deque(requests)
    means, rejections = _Means(), 0
    free = num_slots
    running: list[tuple[int, int, int]] = []  # (last step, slots, length at step 0)
    step = 0
    while waiting:
        while waiting and (slots := reserve(waiting[0])) <= free:
            request = waiting.popleft()
            free -= slots
            running.append((step + request.num_output, slots, request.num_prompt - step))
        if not running:
            waiting.popleft()
            rejections += 1
            continue
        end = min(last for last, _, _ in running)
        count = end - step
        # Lengths grow by one a step: their mean over the stretch.
        tokens = sum(length for _, _, length in running) + len(running) * (step + (count + 1) // 2)
        means.add(count, len(running), tokens, num_slots - free)
        step = end
        free += sum(slots for last, slots, _ in running if last == end)
        running = [one for one in running if one[0] != end]
    return means.result(policy, 0.0, 0, rejections)


@dataclass(eq=False)
class _Running:
    request: Request
    sequence: Sequence
    done: int  # output tokens so far


class _Paged:
    """The closed loop on a block manager."""

    def __init__(self, requests: Items[Request], manager: BlockManager) -> None:
        self.manager = manager
        self.waiting = deque((request, 0, True) for request in requests)
        self.running: list[_Running] = []  # the youngest last
        self.lengths = np.zeros(0, np.int64)
        self.slots = np.zeros(0, np.int64)
        self.left = np.zeros(0, np.int64)  # tokens to come
        self.keep_free = int(WATERMARK * manager.pool.num_usable)
        self.preemptions = self.rejections = self.step = self.hits = self.queries = 0

    def admit(self) -> None:
        """As many as fit, in order."""
        admitted: list[_Running] = []
        while self.waiting:
            request, done, is_new = self.waiting[0]
            tokens = np.concatenate([request.prompt(), request.output()[:done]])
            sequence = self.manager.new_sequence(tokens)
            idle = not self.running and not admitted
            cached = self.manager.admit(sequence, keep_free=0 if idle else self.keep_free)
            if cached is None:
                self.manager.free(sequence)
                if not idle:
                    break
                self.rejections += 1
            else:
                self.manager.commit(sequence, len(tokens))
                if is_new:  # what a preempted one finds again is no hit
                    self.hits += cached
                    self.queries += len(tokens)
                admitted.append(_Running(request, sequence, done))
            self.waiting.popleft()
        if admitted:
            self.running += admitted
            new = [(r.sequence.num_tokens, r.sequence.num_slots) for r in admitted]
            left = [r.request.num_output - r.done for r in admitted]
            self.lengths = np.concatenate([self.lengths, [n for n, _ in new]])
            self.slots = np.concatenate([self.slots, [s for _, s in new]])
            self.left = np.concatenate([self.left, left])

    def catch_up(self, index: int) -> None:
        """Tell the manager which tokens have been produced since it was last told."""
        one = self.running[index]
        count = int(self.lengths[index]) - one.sequence.num_tokens
        if count:
            one.sequence.append(one.request.output()[one.done : one.done + count])
            one.done += count
            self.manager.commit(one.sequence, one.sequence.num_tokens)

    def grow(self) -> None:
        """A slot for the next token of everyone; the youngest make room where there is none."""
        for index in np.flatnonzero(self.lengths == self.slots).tolist():
            if index >= len(self.running):
                break  # sent back
            self.catch_up(index)
            sequence = self.running[index].sequence
            while self.manager.allocate(sequence, sequence.num_tokens + 1) is None:
                self.send_back()
                if index >= len(self.running):
                    break
            else:
                self.slots[index] = sequence.num_slots

    def send_back(self) -> None:
        """The youngest loses its blocks and waits at the head of the queue."""
        last = len(self.running) - 1
        self.catch_up(last)
        victim = self.running.pop()
        self.manager.preempt(victim.sequence)
        self.manager.free(victim.sequence)
        if last == 0:
            self.rejections += 1  # alone, and longer than the whole memory
        else:
            self.waiting.appendleft((victim.request, victim.done, False))
            self.preemptions += 1
        self.lengths, self.slots, self.left = self.lengths[:-1], self.slots[:-1], self.left[:-1]

    def finish(self) -> None:
        """Those that have produced everything leave."""
        ended = np.flatnonzero(self.left == 0).tolist()
        for index in ended:
            self.catch_up(index)
            self.manager.free(self.running[index].sequence)
        if ended:
            gone = set(ended)
            self.running = [r for i, r in enumerate(self.running) if i not in gone]
            self.lengths = np.delete(self.lengths, ended)
            self.slots = np.delete(self.slots, ended)
            self.left = np.delete(self.left, ended)

    def check_gauge(self) -> None:
        """The waste that the manager reports is the waste there is. Raises ValueError."""
        for index in range(len(self.running)):
            self.catch_up(index)
        reported = self.manager.gauges().tail_waste_tokens
        counted = int((self.slots - self.lengths).sum())
        if reported != counted:
            raise ValueError(f"the gauge says {reported} empty slots, the model {counted}")

    def run(self) -> Capacity:
        manager, means = self.manager, _Means()
        checked = 0
        while self.waiting:
            self.admit()
            self.grow()
            if not self.running:
                continue
            room = self.slots - self.lengths
            count = int(min(room.min(), self.left.min()))
            self.lengths += count
            self.left -= count
            used = (manager.pool.num_usable - manager.num_available) * manager.block_size
            # The mean of the stretch: empty slots shrink by one a step.
            empty = int(room.sum()) - len(self.running) * ((count + 1) // 2)
            means.add(count, len(self.running), used - empty, used)
            self.step += count
            if self.step - checked >= GAUGE_STEPS:
                self.check_gauge()
                checked = self.step
            self.finish()
        hit_rate = self.hits / max(1, self.queries)
        return means.result("paging", hit_rate, self.preemptions, self.rejections)


def paged(requests: Items[Request], num_slots: int, block_size: int) -> Capacity:
    """Blocks of `block_size` tokens on demand, prefixes shared."""
    manager = BlockManager(num_slots // block_size, block_size)
    return _Paged(requests, manager).run()
