"""Changes that nothing notices, and why: each was looked at.

A row stands for changes of one kind to lines that contain its code. A survivor without a row fails
a test; what is written here is shown beside it by tests.mutation.run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.mutation.jobs import Row


@dataclass(frozen=True)
class Known:
    """Expressions that must be found in a row's kernel, operator, line, and what changed."""

    kernel: str
    operator: str
    code: str
    change: str
    why: str


KNOWN: Final[tuple[Known, ...]] = ()


def reason(row: Row) -> str:
    """Why a row survives; empty if nobody knows."""
    change = f"{row.before} -> {row.after}"
    for known in KNOWN:
        found = (
            re.search(known.kernel, row.kernel)
            and re.search(known.operator, row.operator)
            and known.code in row.code
            and known.change in change
        )
        if found:
            return known.why
    return ""
