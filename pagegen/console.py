"""How results look: tables and progress on a terminal, plain lines in a pipe, JSON for machines.

It knows no stage: it is given rows and prints them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(frozen=True)
class Screen:
    """Where a verb prints. `as_json` silences everything but the final document."""

    as_json: bool = False

    @property
    def terminal(self) -> bool:
        return sys.stdout.isatty() and not self.as_json

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """One table; in a pipe, aligned plain lines without decoration."""
        if self.as_json:
            return
        if self.terminal:
            view = Table(title=title, title_justify="left", header_style="bold")
            for index, column in enumerate(columns):
                view.add_column(column, justify="left" if index < 3 else "right")
            for row in rows:
                view.add_row(*row)
            Console().print(view)
            return
        widths = [max(len(row[i]) for row in [list(columns), *rows]) for i in range(len(columns))]
        print(title)
        for row in [list(columns), *rows]:
            cells = [
                cell.ljust(width) if index < 3 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())

    def line(self, text: str) -> None:
        """One plain line."""
        if not self.as_json:
            print(text)

    def document(self, value: object) -> None:
        """The JSON document of a verb."""
        if self.as_json:
            print(json.dumps(value, indent=1))

    @contextmanager
    def progress(self, what: str) -> Iterator[Step]:
        """A bar on a terminal; in a pipe one line a quarter, so that logs stay short."""
        if not self.terminal:
            yield Step(self, what, None)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, transient=True) as bar:
            yield Step(self, what, bar)


class Step:
    """A running piece of work with a known number of parts."""

    def __init__(self, screen: Screen, what: str, bar: Progress | None) -> None:
        self.screen = screen
        self.what = what
        self.bar = bar
        self.task = bar.add_task(what, total=None) if bar else None
        self.quarter = 0

    def __call__(self, part: str, done: int, total: int) -> None:
        """`part` was finished; `done` of `total` are."""
        if self.bar is not None and self.task is not None:
            self.bar.update(
                self.task, completed=done, total=total, description=f"{self.what}: {part}"
            )
            return
        quarter = 4 * done // max(total, 1)
        if quarter > self.quarter:
            self.quarter = quarter
            self.screen.line(f"{self.what}: {done}/{total}")
