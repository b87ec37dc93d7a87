"""Which answers grow from which job, and what the device must choose for them.

It knows no tensor: it says which rows of a step's logits are wanted how often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Items
from dataclasses import dataclass, field, replace

from pagegen.runtime.beam import BeamSearch
from pagegen.runtime.job import Job
from pagegen.runtime.request import Handle, Output
from pagegen.runtime.sampler import INCREMENT, MASK
from pagegen.runtime.sampling_params import SamplingParams
from pagegen.runtime.search import Search


@dataclass(eq=False, slots=True)
class Branch:
    """One answer that is sampled. A job has several until its prompt is computed."""

    handle: Handle
    index: int
    params: SamplingParams

    @property
    def output(self) -> Output:
        return self.handle.outputs[self.index]


@dataclass(slots=True)
class Picks:
    """Rows of a step's logits: one for each token to sample, and one for each beam."""

    rows: list[int] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    beam_rows: list[int] = field(default_factory=list)
    beam_jobs: list[Job] = field(default_factory=list)
    num_candidates: list[int] = field(default_factory=list)  # of each beam


class Branches:
    """The answers and searches of all jobs."""

    def __init__(self) -> None:
        self.sampled: dict[Job, list[Branch]] = {}
        self.searches: dict[Job, Search] = {}

    def add(self, job: Job, handle: Handle, seed: int, search: BeamSearch | None) -> None:
        """A new job. seed: of a request that names none."""
        if search is not None:
            self.searches[job] = Search(handle, search, [job])
            return
        params = handle.request.sampling
        self.sampled[job] = [
            Branch(handle, index, _seeded(params, seed, index)) for index in range(handle.request.n)
        ]

    def jobs_of(self, handle: Handle) -> list[Job]:
        """The jobs of a request that have not ended."""
        found = [job for job, branches in self.sampled.items() if branches[0].handle is handle]
        return found + [job for job, one in self.searches.items() if one.handle is handle]

    def handles_of(self, jobs: Iterable[Job]) -> list[Handle]:
        """The requests of some jobs, each once."""
        found: dict[Handle, None] = {}
        for job in jobs:
            if job in self.sampled:
                found[self.sampled[job][0].handle] = None
            elif job in self.searches:
                found[self.searches[job].handle] = None
        return list(found)

    def forget(self, job: Job) -> None:
        """A job has ended."""
        self.sampled.pop(job, None)
        self.searches.pop(job, None)

    def picks(self, jobs: Items[Job]) -> Picks:
        """What is wanted of logits whose i-th row is jobs[i]'s."""
        picks = Picks()
        rows, params, draws = picks.rows, picks.params, picks.draws
        for row, job in enumerate(jobs):
            branches = self.sampled.get(job)
            if branches is None:
                picks.beam_rows.append(row)
                picks.beam_jobs.append(job)
                picks.num_candidates.append(self.searches[job].beams.num_candidates)
                continue
            for branch in branches:
                rows.append(row)
                params.append(branch.params)
                draws.append(len(branch.output.token_ids))
        return picks

    def ready_searches(self) -> list[Search]:
        """Searches all of whose beams have been computed."""
        distinct = dict.fromkeys(self.searches.values())
        return [search for search in distinct if search.ready]


def _seeded(params: SamplingParams, seed: int, index: int) -> SamplingParams:
    """Parameters with a seed of their own: the first answer's is the request's."""
    if params.greedy:
        return params
    own = seed if params.seed is None else params.seed
    return replace(params, seed=(own ^ (index * INCREMENT)) & MASK)
