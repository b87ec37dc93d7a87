"""One changed kernel tried: compiled, run until something catches it, or found to be the same.

It knows no rule and no kernel.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass
from typing import Final, Literal

from pagegen.emit import emit
from pagegen.errors import CompileError, SimulationError
from pagegen.plan import Plan
from tests.mutation.launching import Simulated
from tests.mutation.mutants import Mutant, one_line
from tests.mutation.trials import Trial
from tests.mutation.workshop import Workshop

SEEDS: Final = (0, 1, 2)
PATIENCE: Final = 3  # times what the unchanged kernel takes
Outcome = Literal["caught", "survived", "same code", "does not compile"]
# What a report of the simulator is about, by its words.
KINDS: Final = (
    ("race", "race"),
    ("copy", r"waited for|still be reading"),
    ("index", "outside its"),
    ("memory", r"outside every|only read|read before|not a multiple|of shared memory"),
    ("deadlock", r"deadlock|returned|others|never leave|lane"),
)


@dataclass(frozen=True)
class Verdict:
    """How a mutant fared."""

    outcome: Outcome
    by: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Taken:
    """What all trials of a kernel that is right take."""

    conflicts: tuple[int, ...]  # of banks, of each; the interleaving is all the same to them
    seconds: float  # of a processor


@dataclass(frozen=True)
class Target:
    """One plan's text, what it must do, and what that takes once it was measured."""

    spec: str
    plan: Plan
    text: str
    trials: tuple[Trial, ...]
    workshop: Workshop
    taken: Taken | None = None

    @staticmethod
    def of(spec: str, plan: Plan, trials: tuple[Trial, ...], workshop: Workshop) -> Target:
        """Of an unchanged plan."""
        return Target(spec, plan, emit(plan, "m.yaml").text, trials, workshop)

    def kernels(self, text: str) -> Simulated:
        """The plan with another text. Raises CompileError."""
        return Simulated(self.plan, self.workshop.load(self.plan, text))


def measure(target: Target) -> Taken:
    """What the trials of the unchanged kernel take. Raises if it fails one."""
    begin = time.process_time()
    kernels = target.kernels(target.text)
    found = []
    for trial in target.trials:
        kernels.bank_conflicts = 0
        trial.run(kernels)
        found.append(kernels.bank_conflicts)
    return Taken(tuple(found), time.process_time() - begin)


def judge(target: Target, mutant: Mutant, seeds: tuple[int, ...]) -> Verdict:
    """Compile one mutant and run it. A process that hangs here ends by a signal."""
    try:
        kernels = target.kernels(mutant.text)
    except CompileError:
        return Verdict("does not compile")
    taken = target.taken or measure(target)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE * len(seeds) * (1 + taken.seconds))
    verdict = tried(target, kernels, seeds, taken.conflicts)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if verdict.outcome == "survived":
        codes = (target.workshop.object_code(text) for text in (mutant.text, mutant.original))
        if next(codes) == next(codes):
            return Verdict("same code")
    return verdict


def tried(
    target: Target, kernels: Simulated, seeds: tuple[int, ...], conflicts: tuple[int, ...]
) -> Verdict:
    """The first thing that goes wrong."""
    for seed in seeds:
        for trial, allowed in zip(target.trials, conflicts, strict=True):
            kernels.seed, kernels.bank_conflicts = seed, 0
            where = f"{target.spec}, {trial.name}, seed {seed}"
            try:
                trial.run(kernels)
            except SimulationError as error:
                return Verdict("caught", kind_of(str(error)), f"{where}: {one_line(str(error))}")
            except AssertionError as error:
                return Verdict("caught", "result", f"{where}: {one_line(str(error))[:200]}")
            if kernels.bank_conflicts > allowed:
                return Verdict("caught", "bank conflicts", where)
    return Verdict("survived", detail=target.spec)


def kind_of(report: str) -> str:
    """What a report is about."""
    return next((name for name, words in KINDS if re.search(words, report)), "simulator")
