"""Every kernel of every built package on the GPU, against the oracle, and its promised checks.

Packages are read from generated/ and from the folders in PAGEGEN_TEST_PACKAGES (colon-separated),
which `pagegen build tests/specs/*.yaml --out DIR` fills on any machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.runtime.loader import load
from pagegen.verify import kernel_results, runnable

ROOT = Path(__file__).parents[2]


def built_folders() -> list[Path]:
    """Package folders that hold cubins."""
    parents = [ROOT / "generated"]
    parents += [Path(p) for p in os.environ.get("PAGEGEN_TEST_PACKAGES", "").split(":") if p]
    return sorted(
        found.parents[1] for parent in parents for found in parent.glob("*/cubin/artifacts.json")
    )


def variants() -> list[Any]:
    """(folder, kernel, backend, variant) of everything that was built."""
    rows: list[Any] = []
    if not torch.cuda.is_available():
        return rows
    for folder in built_folders():
        for row in runnable(load(folder), "cuda"):
            key = (row["kernel"], row["backend"], row["variant"])
            rows.append(pytest.param(folder, *key, id="-".join((folder.name, *key))))
    return rows


@pytest.mark.parametrize(("folder", "kernel", "backend", "variant"), variants())
def test_a_variant_agrees_with_the_oracle(
    folder: Path, kernel: str, backend: str, variant: str
) -> None:
    ops = load(folder)
    results = list(kernel_results(ops, kernel, backend, variant, "cuda", seed=1, quick=False))
    assert results
    assert [result for result in results if not result.ok] == []
