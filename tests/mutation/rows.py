"""What became of one change to one kernel.

It knows nothing of how that was found out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """What became of one change."""

    kernel: str
    operator: str
    outcome: str
    by: str
    detail: str
    line: int
    code: str  # the whole line
    before: str
    after: str
