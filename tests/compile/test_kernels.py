"""Every emitted kernel compiles for the targets of its spec, without spills, on any machine.

The tiny spec covers every target with both compilers; the others, whose CUDA kernels are larger,
are compiled for their own targets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagegen.archs import ARCHS
from pagegen.build import Package, compile_all, prepare
from pagegen.compile.cache import Cache

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "specs").glob("*.yaml"))
UNUSUAL = sorted((ROOT / "tests/specs").glob("*.yaml"))


def only(package: Package, backend: str) -> Package:
    """The package with the kernels of one backend."""
    kept = [
        (plan, source)
        for plan, source in zip(package.plans, package.kernels, strict=True)
        if plan.backend == backend
    ]
    return replace(package, plans=tuple(p for p, _ in kept), kernels=tuple(s for _, s in kept))


def compile_here(package: Package, tmp_path: Path) -> None:
    artifacts = compile_all(package, Cache(tmp_path), 2, lambda what, done, total: None)
    assert len(artifacts) == sum(len(plan.targets) for plan in package.plans)
    for artifact in artifacts:
        assert artifact.resources.spill_bytes == 0 and artifact.resources.ctas_per_sm > 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_cuda_kernels_compile_for_every_target_of_the_spec(path: Path, tmp_path: Path) -> None:
    compile_here(only(prepare(path), "cuda"), tmp_path)


@pytest.mark.parametrize("path", UNUSUAL, ids=lambda path: path.stem)
def test_unusual_shapes_compile_with_the_least_shared_memory(path: Path, tmp_path: Path) -> None:
    compile_here(only(prepare(path, ("sm_86",)), "cuda"), tmp_path)


def test_triton_kernels_of_the_tiny_spec_compile_for_every_target(tmp_path: Path) -> None:
    package = only(prepare(ROOT / "specs/tiny.yaml"), "triton")
    assert {target for plan in package.plans for target in plan.targets} == {
        row.name for row in ARCHS
    }
    compile_here(package, tmp_path)
