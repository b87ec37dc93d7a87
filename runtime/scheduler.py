"""Who runs in the next step, with how many tokens, and who gives memory back for it.

It knows no tensor and no model. Decoding sequences go first, one token each; what is left of the
step's tokens goes to prompts, in chunks, in the same batch (Sarathi-Serve, Agrawal et al., 2024).

    step = scheduler.schedule()
    move step.swapped_out, then step.swapped_in; copy step.copies; run step.chunks
    finished = scheduler.update(step, tokens)    # the sampled token of every job that got one

Nobody starves: who waits ages towards the front, the front is never passed by, and the job of the
lowest rank that runs is never preempted. Nothing livelocks: a job that could not run alone was
refused.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from pagegen.errors import RequestError
from pagegen.runtime.admission import check_fits
from pagegen.runtime.block_manager import DEFAULT, BlockManager
from pagegen.runtime.job import Job, State
from pagegen.runtime.limits import Limits
from pagegen.runtime.preemption import Costs
from pagegen.runtime.sequence import Namespace
from pagegen.runtime.step import Draft, Step

LOOK_UP_STEPS = 16  # between two looks for a waiting job's prefix
FIRST = -(2**40)  # a priority that nobody ages past


class Scheduler:
    """Continuous batching over one block manager."""

    def __init__(self, manager: BlockManager, limits: Limits, costs: Costs) -> None:
        self.manager = manager
        self.limits = limits
        self.costs = costs
        self.waiting: list[Job] = []
        self.running: list[Job] = []  # by rank
        self.step_number = 0
        self._arrivals = 0
        self._rows = list(range(limits.max_num_seqs))  # free, a heap
        self._reserved = 0  # rows that running jobs may take by forks

    def submit(
        self,
        name: str,
        prompt: ArrayLike,
        *,
        max_new_tokens: int,
        stop_token_ids: frozenset[int] = frozenset(),
        priority: int = 0,
        width: int = 1,
        together: bool = False,
        namespace: Namespace = DEFAULT,
    ) -> Job:
        """Queue a prompt: [num_tokens] ids. Raises RequestError for what can never run.

        width: sequences that it may become by forks. together: none of them goes on before all
        have a token (beam search), so that all must fit at once.
        """
        length = len(np.asarray(prompt))
        most = self.limits.max_model_len
        check_fits(
            self.manager, self.limits, name, length, max_new_tokens, width, together=together
        )
        sequence = self.manager.new_sequence(prompt, namespace)
        job = Job(
            name, sequence, min(length + max_new_tokens, most), stop_token_ids, priority,
            self._arrivals, width, waiting_since=self.step_number,
        )  # fmt: skip
        self._arrivals += 1
        self.waiting.append(job)
        return job

    def fork(self, job: Job, name: str) -> Job:
        """A job that goes on from the same tokens and shares their blocks; of `job`'s width."""
        if job.state is not State.RUNNING or job.width < 2:
            raise RequestError(
                f"{name}: a fork of {job.name}, {job.state.value}, width {job.width}",
                allowed="of a running job, as often as its width says",
            )
        child = Job(
            name, self.manager.fork(job.sequence), job.max_tokens, job.stop_token_ids,
            job.priority, job.arrival, 1, waiting_since=self.step_number,
        )  # fmt: skip
        job.width -= 1
        self._reserved -= 1
        self._run(child, job.rank)
        return child

    def hand_over(self, job: Job, heir: Job) -> None:
        """End a running job; another of its family may fork as many times more."""
        width = job.width
        self.abort(job)
        heir.width += width
        self._reserved += width

    def lend(self, job: Job, other: Job) -> None:
        """Let another of the family fork once in a job's stead."""
        job.width -= 1
        other.width += 1

    def abort(self, job: Job) -> None:
        """End a job in whatever state it is; its blocks are free at once."""
        if job.state is State.FINISHED:
            return
        if job.state is State.RUNNING:
            self._stop(job)
        else:
            self.waiting.remove(job)
        job.state = State.FINISHED
        self.manager.free(job.sequence)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.running)

    def schedule(self) -> Step:
        """The next step. Blocks are allocated; nothing counts as computed before `update`."""
        self.step_number += 1
        draft = Draft(self.limits.max_num_batched_tokens)
        decoding = [job for job in self.running if job.num_to_compute == 1]
        prompts = [job for job in self.running if job.num_to_compute > 1]
        for job in (*decoding, *prompts):
            if draft.budget == 0:
                break
            if job.state is State.RUNNING:  # not preempted for one before it
                self._extend(job, draft)
        if not draft.preempted:
            self._admit(draft)
            if not draft.chunks and not draft.swapped_in and self.waiting:
                self._let_through(draft)
        return draft.step()

    def _let_through(self, draft: Draft) -> None:
        """All that run wait for one of their family that waits for memory, which they hold.

        The first family goes before all others until it ends, and these make room for it.
        """
        family = self.running[0].arrival
        for job in (*self.running, *self.waiting):
            if job.arrival == family:
                job.priority, job.rank = FIRST, (FIRST, family)
        for job in [job for job in reversed(self.running) if job.arrival != family]:
            self._preempt(job, draft)

    def _extend(self, job: Job, draft: Draft) -> None:
        """Slots for the next tokens of a running job, whoever must make room."""
        num_tokens = self._chunk(job.num_to_compute, draft)
        end = job.sequence.num_computed + num_tokens
        while (copies := self.manager.allocate(job.sequence, end)) is None:
            victim = self.running[-1]
            self._preempt(victim, draft)
            if victim is job:
                return
        draft.add(job, num_tokens, copies)

    def _chunk(self, wanted: int, draft: Draft) -> int:
        if wanted == 1:  # a sequence that decodes, the most of them
            return 1
        most = draft.budget if not self.limits.max_chunk else self.limits.max_chunk
        return min(wanted, draft.budget, most)

    def _preempt(self, job: Job, draft: Draft) -> None:
        """Take a job's blocks. It keeps its place in the order of arrival."""
        sequence = job.sequence
        # Of a block that is only about to be copied there is nothing to move yet.
        is_whole = not draft.remove(job)
        self._stop(job)
        num_blocks = sequence.num_blocks - sequence.first_block
        pairs = None
        if is_whole and self.costs.cheaper(sequence.num_computed, num_blocks) == "swap":
            pairs = self.manager.swap_out(sequence)
        if pairs is None:
            self.manager.preempt(sequence)
            job.state = State.WAITING
        else:
            draft.swapped_out.append(pairs)
            job.state = State.SWAPPED
        job.num_preemptions += 1
        job.waiting_since = self.step_number
        draft.preempted.append(job)
        self.waiting.append(job)

    def _admit(self, draft: Draft) -> None:
        """Start who waits, in order, until somebody does not fit."""
        self.waiting.sort(key=self._order)
        started = 0
        for job in self.waiting:
            rows = len(self._rows) - self._reserved
            if draft.budget == 0 or rows < job.width or not self._start(job, draft):
                break
            started += 1
        del self.waiting[:started]

    def _order(self, job: Job) -> tuple[int, int]:
        aged = (self.step_number - job.waiting_since) // self.limits.ageing_steps
        return job.priority - aged, job.arrival

    def _start(self, job: Job, draft: Draft) -> bool:
        """Give a waiting job blocks and its first chunk; False if it does not fit now."""
        manager, sequence = self.manager, job.sequence
        keep_free = int(self.limits.watermark * manager.pool.num_usable) if self.running else 0
        # All of it must fit, though it comes in chunks: else its own chunks would preempt it.
        whole = job.state is State.SWAPPED or manager.ledger.window is None
        if whole and self._missing(job) + keep_free > manager.num_available:
            return False
        if job.state is State.SWAPPED:
            pairs = manager.swap_in(sequence)
            if pairs is None:
                return False
            draft.swapped_in.append(pairs)
        elif (
            manager.admit(sequence, self._chunk(sequence.num_tokens, draft), keep_free=keep_free)
            is None
        ):
            return False
        self._run(job, self._order(job))
        self._reserved += job.width - 1
        num_tokens = self._chunk(job.num_to_compute, draft)
        if num_tokens == 0:  # it waits for its family
            return True
        copies = manager.allocate(sequence, sequence.num_computed + num_tokens)
        if copies is not None:  # else it runs from the next step on
            draft.add(job, num_tokens, copies)
        return True

    def _missing(self, job: Job) -> int:
        """Blocks that a waiting job needs for its tokens so far, less what is cached.

        Looking that up takes as long as the prompt is, so who waits is looked up now and then.
        """
        if job.looked_up_at < 0 or self.step_number - job.looked_up_at >= LOOK_UP_STEPS:
            manager, sequence = self.manager, job.sequence
            cached = manager.match_prefix(sequence.tokens, sequence.namespace)
            there = max(cached // manager.block_size, sequence.first_block)
            job.num_missing = manager.ledger.num_blocks_of(sequence.num_tokens) - there
            job.looked_up_at = self.step_number
        return job.num_missing

    def _run(self, job: Job, rank: tuple[int, int]) -> None:
        job.state = State.RUNNING
        job.looked_up_at = -1
        job.rank = rank
        job.row = heapq.heappop(self._rows)
        job.sequence.forget_row()
        insort(self.running, job, key=lambda one: one.rank)

    def _stop(self, job: Job) -> None:
        self.running.remove(job)
        heapq.heappush(self._rows, job.row)
        job.row = -1
        self._reserved -= job.width - 1

    def update(self, step: Step, tokens: Mapping[Job, int]) -> tuple[Job, ...]:
        """Take a step's results: the token of every job whose chunk `samples`.

        Returns the jobs that ended with it. Jobs aborted meanwhile are passed over.
        """
        self.commit(step)
        jobs = [chunk.job for chunk in step.chunks if chunk.samples]
        alive = [job for job in jobs if job.state is State.RUNNING]
        return tuple(job for job in alive if self.append(job, tokens[job]))

    def commit(self, step: Step) -> None:
        """The KV of a step's chunks is in the cache. Forks come between this and `append`: then
        each sequence gets a token of its own from the same logits."""
        for chunk in step.chunks:
            if chunk.job.state is State.RUNNING:
                self.manager.commit(chunk.job.sequence, chunk.position + chunk.num_tokens)

    def append(self, job: Job, token: int) -> bool:
        """Give a job its next token; True if it ended with it."""
        job.sequence.append(token)
        ended = job.ends_with(token)
        if ended:
            self.abort(job)
        return ended
