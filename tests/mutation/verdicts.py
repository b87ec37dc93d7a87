"""One changed kernel tried: compiled, run until something catches it, or found to be the same.

It knows no rule and no kernel.
"""

from __future__ import annotations

import re
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pagegen.emit import emit
from pagegen.errors import CompileError, SimulationError
from pagegen.plan import Plan
from pagegen.simulate.library import COMMON, KERNEL, WATCHED, host_compiler, simulator_files
from tests.mutation.launching import Simulated
from tests.mutation.mutants import Mutant, one_line
from tests.mutation.trials import Trial

SEEDS: Final = (0, 1, 2)
SECONDS: Final = 60  # of all trials of one mutant; a fraction of one is usual
Outcome = Literal["caught", "survived", "same code", "does not compile"]
# What a report of the simulator is about, by its words.
KINDS: Final = (
    ("race", "race"),
    ("copy", r"waited for|still be reading"),
    ("index", "outside its array"),
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
class Target:
    """One plan's text, what it must do, and the bank conflicts of each trial when it is right."""

    spec: str
    plan: Plan
    text: str
    trials: tuple[Trial, ...]
    conflicts: tuple[int, ...] = ()

    @staticmethod
    def of(spec: str, plan: Plan, trials: tuple[Trial, ...]) -> Target:
        """Of an unchanged plan."""
        return Target(spec, plan, emit(plan, "m.yaml").text, trials)


def measure(target: Target) -> tuple[int, ...]:
    """Bank conflicts of each trial. Raises if the unchanged kernel does not pass one."""
    kernels = Simulated(target.plan, target.text)
    found = []
    for seed in SEEDS:
        for trial in target.trials:
            kernels.seed, kernels.bank_conflicts = seed, 0
            trial.run(kernels)
            found.append(kernels.bank_conflicts)
    return tuple(found)


def judge(target: Target, mutant: Mutant, seeds: tuple[int, ...]) -> Verdict:
    """Compile one mutant and run it. A process that hangs here ends by a signal."""
    try:
        kernels = Simulated(target.plan, mutant.text)
    except CompileError:
        return Verdict("does not compile")
    kernels.simulator.path.unlink(missing_ok=True)  # loaded; the cache is for what comes again
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    verdict = tried(target, kernels, seeds)
    signal.alarm(0)
    if verdict.outcome == "survived" and same_code(target.plan, mutant):
        return Verdict("same code")
    return verdict


def tried(target: Target, kernels: Simulated, seeds: tuple[int, ...]) -> Verdict:
    """The first thing that goes wrong."""
    conflicts = iter(target.conflicts)
    for seed in seeds:
        for trial in target.trials:
            kernels.seed, kernels.bank_conflicts = seed, 0
            where = f"{target.spec}, {trial.name}, seed {seed}"
            try:
                trial.run(kernels)
            except SimulationError as error:
                return Verdict("caught", kind_of(str(error)), f"{where}: {one_line(str(error))}")
            except AssertionError as error:
                return Verdict("caught", "result", f"{where}: {one_line(str(error))[:200]}")
            if kernels.bank_conflicts > next(conflicts):
                return Verdict("caught", "bank conflicts", where)
    return Verdict("survived", detail=target.spec)


def kind_of(report: str) -> str:
    """What a report is about."""
    return next((name for name, words in KINDS if re.search(words, report)), "simulator")


def same_code(plan: Plan, mutant: Mutant) -> bool:
    """Whether a mutant and the original, with calls in the same places, are one object file."""
    return object_code(plan, mutant.text) == object_code(plan, mutant.original)


def object_code(plan: Plan, text: str) -> bytes:
    """A kernel as an object file, as the simulator compiles it but for debug information."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        for name, content in simulator_files().items():
            (work / name).write_text(content, encoding="utf-8")
        (work / "kernel.cu.cpp").write_text(text, encoding="utf-8")
        flags = [*COMMON, "-g0", *KERNEL, *WATCHED, "-c", "kernel.cu.cpp", "-o", "kernel.o"]
        host_compiler().run(flags, work, plan.symbol)
        return (work / "kernel.o").read_bytes()
