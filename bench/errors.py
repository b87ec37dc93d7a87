"""The error of a command line that asks for what there is not."""

from __future__ import annotations

import sys
from collections.abc import Callable


class UsageError(Exception):
    """Says what was asked and what there is."""


def run_script(main: Callable[[], None]) -> None:
    """Run a benchmark; a wrong command line ends it with status 2 and no traceback."""
    try:
        main()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
