"""A beam search on the scheduler: its beams are jobs that fork, and wait for each other.

It knows no tensor, and no other request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagegen.runtime.beam import BeamSearch
from pagegen.runtime.job import Job, State
from pagegen.runtime.request import Event, Handle
from pagegen.runtime.scheduler import Scheduler


@dataclass(eq=False, slots=True)
class Search:
    """A request's beams: beam i of the search is jobs[i].

    candidates: log-probabilities and ids of what each may go on with. One that is preempted while
    it waits for the others keeps them.
    """

    handle: Handle
    beams: BeamSearch
    jobs: list[Job]
    candidates: dict[Job, tuple[list[float], list[int]]] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether every beam has been computed, and is here to be forked."""
        return all(
            job in self.candidates and job.state is State.RUNNING and job.num_to_compute == 0
            for job in self.jobs
        )

    def advance(self, scheduler: Scheduler) -> bool:
        """Fork the beams that go on, give each its token, and end the others; False when the
        search is over, and all its jobs with it."""
        jobs = self.jobs
        found = [self.candidates.pop(job) for job in jobs]
        chosen = self.beams.advance([row[0] for row in found], [row[1] for row in found])
        if not chosen:
            for job in jobs:
                scheduler.abort(job)
            self.jobs = []
            return False
        heirs = {one.beam: jobs[one.beam] for one in chosen}
        rich = next(iter(heirs.values()))  # may fork in the stead of those that end
        for beam, job in enumerate(jobs):
            if beam in heirs:
                while job is not rich and job.width > 1:
                    scheduler.lend(job, rich)
            else:
                scheduler.hand_over(job, rich)
        self.jobs = []
        for one in chosen:
            parent = jobs[one.beam]
            if heirs.pop(one.beam, None) is parent:
                self.jobs.append(parent)
                continue
            if parent is not rich:
                scheduler.lend(rich, parent)
            self.jobs.append(scheduler.fork(parent, parent.name))
        # Only now: a fork has its parent's tokens.
        for job, one in zip(self.jobs, chosen, strict=True):
            scheduler.append(job, one.token)
        return True

    def events(self) -> list[Event]:
        """The answers of a search that is over."""
        found = []
        answers = zip(self.handle.outputs, self.beams.finished, strict=False)
        for index, (output, best) in enumerate(answers):
            output.token_ids[:], output.score = best.token_ids, best.score
            output.finish_reason = "stop" if best.stopped else "length"
            found.append(Event(self.handle, index, best.token_ids, output.finish_reason))
        return found
