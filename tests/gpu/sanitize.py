"""Every CUDA kernel of the given packages once, small, for a run under compute-sanitizer.

    compute-sanitizer --tool memcheck  --error-exitcode 1 python tests/gpu/sanitize.py FOLDER...
    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/gpu/sanitize.py FOLDER...

It compares with the oracle as well: a kernel that is clean because it did nothing fails here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pagegen.runtime.loader import load
from pagegen.verify import verify


def main(folders: list[str]) -> int:
    """0 when every kernel of every package is right."""
    wrong = 0
    for folder in folders:
        results = verify(load(Path(folder)), backends=("cuda",), device="cuda", quick=True)
        bad = [result for result in results if not result.ok]
        print(f"{Path(folder).name}: {len(results)} calls, {len(bad)} wrong", flush=True)
        for result in bad:
            print(f"  {result}")
        wrong += len(bad) + (not results)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
