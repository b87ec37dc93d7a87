"""The changes to one kernel over all its specs: each one job, tried on one spec after the other.

It knows no rule and no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagegen.plan import Kernel
from tests.mutation.mutants import Mutant, Rule, mutants
from tests.mutation.pool import run_all
from tests.mutation.rows import Row
from tests.mutation.specs import plans_of, specs_of
from tests.mutation.survivors import reason
from tests.mutation.sync_rules import ORDERING, SYNC_RULES
from tests.mutation.trials import trials
from tests.mutation.value_rules import VALUE_RULES
from tests.mutation.verdicts import SEEDS, Taken, Target, Verdict, judge, measure
from tests.mutation.workshop import Workshop

RULES: tuple[Rule, ...] = (*SYNC_RULES, *VALUE_RULES)
ORDER_WORDS = ("barrier", "wait", "commit", "fence", "arrive", "phase", "stage")
CHECKED_SPECS = 2  # the first ones: what is checked depends on few numbers


@dataclass(frozen=True)
class Job:
    """One change. It is made to every spec's text that has its line."""

    kernel: str  # with its variant
    operator: str
    tries: tuple[tuple[Target, Mutant], ...]


def is_about_order(operator: str) -> bool:
    """Whether a change may show in one interleaving and not in another."""
    return operator in ORDERING or operator.endswith(ORDER_WORDS)


def targets(kernel: Kernel, variant: str, workshop: Workshop, only_spec: str = "") -> list[Target]:
    """One kernel variant of every spec."""
    found = []
    for name, spec in specs_of(kernel).items():
        if only_spec in ("", name):
            plan = plans_of(spec, variant)[kernel]
            found.append(Target.of(name, plan, trials(spec, plan), workshop))
    return found


def measured(found: Sequence[Target], num_processes: int) -> list[Target]:
    """The targets with what they take. Raises where an unchanged kernel does not pass."""
    taken = {id(target): row for target, row in run_all(found, measure, died, num_processes)}
    return [replace(target, taken=taken[id(target)]) for target in found]


def died(target: Target, how: str) -> Taken:
    """An unchanged kernel must not."""
    raise AssertionError(f"{target.spec}: the unchanged {target.plan.symbol} ends by {how}")


def jobs(
    kernel: Kernel,
    workshop: Workshop,
    num_processes: int,
    *,
    only_spec: str = "",
    variant: str = "",
    few: bool = False,
) -> list[Job]:
    """All changes to one kernel, to those of its texts that have the line.

    A change belongs to the default variant if that has the line; the checked one is tried after it.
    few: not all will be tried, so texts are measured when they are needed, but for the first.
    """
    found = targets(kernel, "default", workshop, only_spec)
    found += targets(kernel, "checked", workshop, only_spec)[:CHECKED_SPECS]
    tries: dict[tuple[str, ...], list[tuple[Target, Mutant]]] = {}
    now = 1 if few else len(found)
    for target in (*measured(found[:now], num_processes), *found[now:]):
        for mutant in mutants(target.text, RULES):
            tries.setdefault(mutant.key, []).append((target, mutant))
    made = (
        Job(f"{kernel} {row[0][0].plan.variant}", row[0][1].operator, tuple(row))
        for row in tries.values()
    )
    return [job for job in made if job.kernel.endswith(variant)]


def work(job: Job) -> Row:
    """Try one change until it is caught; one that is known to survive on a single spec."""
    rows: dict[str, Row] = {}
    for target, mutant in job.tries:
        one = target.plan.checked or not is_about_order(job.operator)
        seeds = SEEDS[:1] if one else SEEDS
        verdict = judge(target, mutant, seeds)
        row = row_of(job, mutant, verdict)
        rows.setdefault(row.outcome, row)
        is_known = row.outcome == "survived" and reason(row) != ""
        if is_known or row.outcome in ("caught", "does not compile"):
            return row
    return rows.get("survived") or rows["same code"]


def row_of(job: Job, mutant: Mutant, verdict: Verdict) -> Row:
    """For the table."""
    return Row(
        job.kernel, job.operator, verdict.outcome, verdict.by, verdict.detail, mutant.line,
        mutant.code, mutant.before, mutant.after,
    )  # fmt: skip


def lost(job: Job, how: str) -> Row:
    """The process that tried a change did not come back: any test would notice."""
    verdict = Verdict("caught", how, job.tries[0][0].spec)
    return row_of(job, job.tries[0][1], verdict)
