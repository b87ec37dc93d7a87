"""Serves requests: scheduler, cache, model and sampler, one step at a time.

    engine = Engine("generated/llama3_8b", load_model(folder, dtype="bf16", device="cuda"))
    for event in engine.stream(engine.submit(Request(prompt_token_ids))):
        ...

It is for one thread, and waits for the device once a step: for the sampled tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pagegen.errors import RequestError
from pagegen.runtime.attention import PagedAttention
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.beam import BeamSearch
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.branches import Branches
from pagegen.runtime.calibration import measured_costs, num_blocks_left
from pagegen.runtime.chosen import Chosen, choose
from pagegen.runtime.dispatcher import Dispatcher, Table
from pagegen.runtime.engine_metrics import EngineMetrics, Totals, read_metrics
from pagegen.runtime.executor import Executor, check_prompt
from pagegen.runtime.job import Job
from pagegen.runtime.kv_cache import KvCache
from pagegen.runtime.limits import Limits
from pagegen.runtime.loader import load, manifest_of
from pagegen.runtime.models.paged_model import PagedModel
from pagegen.runtime.preemption import Costs
from pagegen.runtime.request import Event, Handle, Output, Reason, Request
from pagegen.runtime.scheduler import Scheduler
from pagegen.runtime.search import Search
from pagegen.runtime.step import Step


class Engine:
    """Continuous batching of one model on one device."""

    def __init__(
        self,
        package: Any,
        model: Any,
        *,
        num_blocks: int | None = None,
        memory_fraction: float = 0.9,
        num_host_blocks: int = 0,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        max_model_len: int | None = None,
        max_chunk: int = 0,
        watermark: float = 0.01,
        prefix_caching: bool = True,
        backend: str | None = None,
        table: Table | None = None,
        costs: Costs | None = None,
        graphs: bool | None = None,
        seed: int = 0,
    ) -> None:
        """package: a generated folder, or what pagegen.load gave. model: a PagedModel of it, a
        LoadedModel, or a transformers model, on the device that is to serve.

        num_blocks: of the KV cache; default: what brings the GPU's memory in use to
        memory_fraction, 1 GiB on a CPU. num_host_blocks: for swapping, none by default.
        max_model_len: default: the model's own. max_num_batched_tokens, max_chunk, watermark: see
        Limits. backend, table: see Dispatcher. costs: default: measured, if there are host blocks.
        graphs: CUDA graphs for decode; default: on a GPU. seed: of the seeds of requests without.
        Raises ModelError, PackageError, RequestError or CacheError for what does not fit together.
        """
        ops = load(package) if isinstance(package, (str, Path)) else package
        facts = manifest_of(ops).spec
        if not isinstance(model, PagedModel):
            inner = getattr(model, "model", None) if hasattr(model, "tokenizer") else model
            model = PagedModel(inner, ops, max_model_len=max_model_len)
        longest = max_model_len or model.max_model_len
        if longest > model.max_model_len:
            raise RequestError(f"max_model_len {longest}", allowed=f"1 to {model.max_model_len}")
        device = model.device
        limits = Limits(max_num_batched_tokens, max_num_seqs, longest, watermark, 100, max_chunk)
        builder = BatchBuilder(
            block_size=facts.block_size,
            max_num_seqs=max_num_seqs,
            max_num_tokens=max_num_batched_tokens,
            max_model_len=longest,
            device=device,
        )
        dispatcher = Dispatcher.for_package(ops, device=device, backend=backend, table=table)
        if num_blocks is None:
            num_blocks = num_blocks_left(model, ops, dispatcher, builder, memory_fraction)
        cache = KvCache(
            ops, model.num_layers, num_blocks, device=device, num_host_blocks=num_host_blocks
        )
        attention = PagedAttention(ops, cache, dispatcher)
        on_gpu = device.type == "cuda"
        self.executor = Executor(
            model, cache, attention, builder, graphs=on_gpu if graphs is None else graphs
        )
        if costs is None:
            known = not num_host_blocks
            costs = Costs(cache.block_bytes) if known else measured_costs(self.executor)
        self.manager = BlockManager(
            num_blocks,
            facts.block_size,
            window=facts.window or None,
            num_host_blocks=num_host_blocks,
            prefix_caching=prefix_caching,
        )
        self.scheduler = Scheduler(self.manager, limits, costs)
        self.model = model
        self.totals = Totals()
        self._branches = Branches()
        self._seeds = random.Random(seed)
        self._events: list[Event] = []

    def warm_up(self) -> None:
        """Capture all CUDA graphs now: tens of seconds, of which no step then needs any."""
        if self.executor.graphs is not None:
            self.executor.graphs.capture_all()

    def submit(self, request: Request) -> Handle:
        """Queue a request. Raises RequestError for what can never run."""
        name = request.name or f"request {self.totals.requests}"
        check_prompt(request.prompt_token_ids, self.model.vocab_size, name)
        stop = request.stop_token_ids
        stops = frozenset(self.model.eos_token_ids if stop is None else stop)
        job = self.scheduler.submit(
            name,
            request.prompt_token_ids,
            max_new_tokens=request.max_new_tokens,
            stop_token_ids=stops,
            priority=request.priority,
            width=request.num_sequences,
            together=request.beam is not None,
            namespace=request.namespace,
        )
        handle = Handle(name, request, tuple(Output() for _ in range(request.n)))
        length = job.sequence.num_tokens
        search = BeamSearch(request.beam, stops, job.max_tokens - length) if request.beam else None
        self._branches.add(job, handle, self._seeds.getrandbits(64), search)
        self.totals.requests += 1
        self.totals.prompt_tokens += length
        return handle

    def abort(self, handle: Handle) -> None:
        """End a request in whatever state it is; its blocks are free at once."""
        self._end(handle, "aborted")

    def _end(self, handle: Handle, reason: Reason) -> None:
        if handle.done:
            return
        for job in self._branches.jobs_of(handle):
            self.scheduler.abort(job)
            self._branches.forget(job)
        for index, output in enumerate(handle.outputs):
            if not output.finish_reason:
                output.finish_reason = reason
                self._events.append(Event(handle, index, (), reason))
        self.totals.aborted_requests += 1

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work or bool(self._events)

    def step(self) -> tuple[Event, ...]:
        """Run one step; returns what came of it, and of aborts since the last one.

        When the model fails, its error is raised after the requests of the step have ended with
        the reason "error"; the others go on with the next step.
        """
        begin = time.perf_counter()
        if self.scheduler.has_work:
            step = self.scheduler.schedule()
            self._move(step)
            if step.chunks:
                self._compute(step)
                self.totals.steps += 1
                self.totals.computed_tokens += sum(chunk.num_tokens for chunk in step.chunks)
                self.totals.look(self.manager)
            for search in self._branches.ready_searches() if self._branches.searches else ():
                self._advance(search)
        events, self._events = tuple(self._events), []
        self.totals.busy_seconds += time.perf_counter() - begin
        return events

    def _move(self, step: Step) -> None:
        try:
            self.executor.move(step)
        except BaseException as error:
            # What was swapped in counts as cached, and what was copied as there.
            self._fail([*self.scheduler.running, *step.preempted], error)
            self.manager.reset_prefix_cache()
            raise

    def _compute(self, step: Step) -> None:
        """Run the model, and take over what it says."""
        jobs = [chunk.job for chunk in step.chunks if chunk.samples]
        picks = self._branches.picks(jobs)
        try:
            chosen = choose(self.executor.run(step), len(jobs), picks)
        except BaseException as error:
            self._fail([chunk.job for chunk in step.chunks], error)
            raise
        self.scheduler.commit(step)
        self._append(jobs, chosen)
        for job, candidates in zip(picks.beam_jobs, chosen.candidates, strict=True):
            self._branches.searches[job].candidates[job] = candidates

    def _fail(self, jobs: Iterable[Job], error: BaseException) -> None:
        for handle in self._branches.handles_of(jobs):
            handle.error = error
            self._end(handle, "error")

    def _append(self, jobs: list[Job], chosen: Chosen) -> None:
        """Give each answer its token; a job with several answers is forked before."""
        sampled = self._branches.sampled
        place = 0
        for job in jobs:
            branches = sampled.get(job)
            if branches is None:
                continue
            heirs = [job]
            if len(branches) > 1:
                heirs += [
                    self.scheduler.fork(job, f"{job.name}, answer {branch.index}")
                    for branch in branches[1:]
                ]
                for heir, branch in zip(heirs, branches, strict=True):
                    sampled[heir] = [branch]
            for heir, branch in zip(heirs, branches, strict=True):
                token, output = chosen.tokens[place], branch.output
                output.token_ids.append(token)
                if branch.params.logprobs is not None:
                    output.logprobs.append(chosen.logprobs(place, branch.params.logprobs))
                place += 1
                if self.scheduler.append(heir, token):
                    stopped = token in heir.stop_token_ids
                    output.finish_reason = "stop" if stopped else "length"
                    del sampled[heir]
                    self.totals.finished_requests += branch.handle.done
                self._events.append(
                    Event(branch.handle, branch.index, (token,), output.finish_reason)
                )
        self.totals.generated_tokens += place

    def _advance(self, search: Search) -> None:
        """One step of a beam search, whose jobs come and go with it."""
        for job in search.jobs:
            self._branches.forget(job)
        if search.advance(self.scheduler):
            self.totals.generated_tokens += len(search.jobs)
            self._branches.searches.update(dict.fromkeys(search.jobs, search))
        else:
            self._events += search.events()
            self.totals.finished_requests += 1

    def stream(self, handle: Handle) -> Iterator[Event]:
        """A request's events as they come, running steps for all requests meanwhile."""
        seen = [0] * len(handle.outputs)
        ended = [False] * len(handle.outputs)
        while True:
            for index, output in enumerate(handle.outputs):
                fresh = tuple(output.token_ids[seen[index] :])
                if (fresh or output.finish_reason) and not ended[index]:
                    seen[index] += len(fresh)
                    ended[index] = bool(output.finish_reason)
                    yield Event(handle, index, fresh, output.finish_reason)
            if all(ended):
                return
            self.step()

    def generate(self, requests: Iterable[Request]) -> list[Handle]:
        """Serve requests to their ends."""
        handles = [self.submit(request) for request in requests]
        while not all(handle.done for handle in handles):
            self.step()
        return handles

    def metrics(self) -> EngineMetrics:
        """Gauges, rates and counters now. O(number of sequences)."""
        return read_metrics(self.scheduler, self.totals)
