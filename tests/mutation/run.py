"""python -m tests.mutation.run: every change to every kernel, and a table of what caught it.

It knows what is shown, and not how anything is found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from pagegen.plan import KERNELS, Kernel
from tests.mutation.jobs import Row, all_jobs, lost, work
from tests.mutation.pool import run_all

VARIANTS = ("default", "checked")
COLUMNS = ("caught", "survived", "same code", "does not compile")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Its status is 0 whatever survives: tests judge, this shows."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=__doc__)
    parser.add_argument("--kernel", choices=KERNELS, action="append", help="default: all")
    parser.add_argument("--variant", choices=VARIANTS, help="default: both")
    parser.add_argument("--spec", default="", help="one of tests/mutation/specs.py; default: all")
    parser.add_argument("--operator", default="", help="only operators that contain this")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--json", type=Path, help="where all rows are written")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # processes are forked, and each has a core
    rows: list[Row] = []
    for kernel in chosen.kernel or KERNELS:
        for variant in VARIANTS:
            if chosen.variant in (None, variant):
                rows += run(kernel, variant, chosen.spec, chosen.operator, chosen.jobs)
                if chosen.json:
                    chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(report(rows))
    return 0


def run(kernel: Kernel, variant: str, spec: str, operator: str, num_processes: int) -> list[Row]:
    """The rows of one kernel variant, with a line of progress now and then."""
    found = [
        job for job in all_jobs(kernel, variant, spec, num_processes) if operator in job.operator
    ]
    rows: list[Row] = []
    begin = shown = time.monotonic()
    for _, row in run_all(found, work, lost, num_processes):
        rows.append(row)
        now = time.monotonic()
        if now - shown > 15 or len(rows) == len(found):
            shown = now
            survived = sum(row.outcome == "survived" for row in rows)
            print(
                f"{kernel} {variant}: {len(rows)} of {len(found)}, {survived} survive, "
                f"{now - begin:.0f} s", file=sys.stderr, flush=True,
            )  # fmt: skip
    return rows


def table(rows: Sequence[Row], column: str) -> list[str]:
    """Counts by outcome, a line for each value of a column."""
    names = sorted({getattr(row, column) for row in rows})
    width = max((len(name) for name in names), default=0)
    lines = [f"{'':{width}}" + "".join(f"{name:>18}" for name in (*COLUMNS, "caught %"))]
    for name in (*names, "all"):
        counts = Counter(
            row.outcome for row in rows if name in ("all", getattr(row, column))
        )
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
            lines.append(f"  {row.kernel}:{row.line} ({row.detail}) {row.operator}")
            lines.append(f"    {row.code}")
            lines.append(f"    {row.before!r} -> {row.after!r}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
