"""python -m tests.mutation.run: every change to every kernel, and a table of what caught it.

It knows what is shown, and not how anything is found.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pagegen.plan import KERNELS
from tests.mutation.jobs import Job, jobs, lost, work
from tests.mutation.pool import run_all
from tests.mutation.rows import Row
from tests.mutation.survivors import reason
from tests.mutation.workshop import Workshop

VARIANTS = ("default", "checked")
COLUMNS = ("caught", "survived", "same code", "does not compile")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Its status is 0 whatever survives: tests judge, this shows."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=__doc__)
    parser.add_argument("--kernel", choices=KERNELS, action="append", help="default: all")
    parser.add_argument("--variant", default="", choices=VARIANTS, help="default: both")
    parser.add_argument("--spec", default="", help="one of tests/mutation/specs.py; default: all")
    parser.add_argument("--operator", default="", help="only those that this expression finds")
    parser.add_argument("--every", type=int, default=1, help="only each n-th change")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--json", type=Path, help="where all rows are written")
    chosen = parser.parse_args(arguments)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pagegen_mutation_") as folder:
        workshop = Workshop.open(Path(folder))
        for kernel in chosen.kernel or KERNELS:
            found = jobs(
                kernel, workshop, chosen.jobs, only_spec=chosen.spec, variant=chosen.variant
            )
            found = [job for job in found if re.search(chosen.operator, job.operator)]
            found = found[:: chosen.every]
            rows += run(kernel, found, chosen.jobs)
            if chosen.json:
                chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(report(rows))
    return 0


def run(name: str, found: Sequence[Job], num_processes: int) -> list[Row]:
    """The rows of one kernel variant, with a line of progress now and then."""
    rows: list[Row] = []
    begin = shown = time.monotonic()
    for _, row in run_all(found, work, lost, num_processes):
        rows.append(row)
        if row.outcome == "survived":
            print(*survivor(row), sep="\n", file=sys.stderr)
        now = time.monotonic()
        if now - shown > 15 or len(rows) == len(found):
            shown = now
            survived = sum(row.outcome == "survived" for row in rows)
            print(
                f"{name}: {len(rows)} of {len(found)}, {survived} survive, "
                f"{now - begin:.0f} s", file=sys.stderr, flush=True,
            )  # fmt: skip
    return rows


def survivor(row: Row) -> list[str]:
    """Where, what, and why if that is known."""
    return [
        f"  {row.kernel}:{row.line} ({row.detail}) {row.operator}",
        f"    {row.code}",
        f"    {row.before!r} -> {row.after!r}",
        f"    {reason(row) or 'NOT EXPLAINED'}",
    ]


def table(rows: Sequence[Row], column: str) -> list[str]:
    """Counts by outcome, a line for each value of a column."""
    names = sorted({getattr(row, column) for row in rows})
    width = max((len(name) for name in names), default=0)
    lines = [f"{'':{width}}" + "".join(f"{name:>18}" for name in (*COLUMNS, "caught %"))]
    for name in (*names, "all"):
        counts = Counter(row.outcome for row in rows if name in ("all", getattr(row, column)))
        live = counts["caught"] + counts["survived"]
        share = f"{100 * counts['caught'] / live:.1f}" if live else "-"
        cells = [str(counts[outcome]) for outcome in COLUMNS]
        lines.append(f"{name:{width}}" + "".join(f"{cell:>18}" for cell in (*cells, share)))
    return lines


def report(rows: Sequence[Row]) -> str:
    """What was caught, by what, and every survivor."""
    lines = [*table(rows, "kernel"), "", *table(rows, "operator"), "", "caught by"]
    for name, count in Counter(row.by for row in rows if row.by).most_common():
        lines.append(f"  {name:16}{count:6}")
    lines += ["", "survivors"]
    for row in rows:
        if row.outcome == "survived":
            lines += survivor(row)
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
