"""Runs verify with what this machine has: its GPU, or what stands in for one on a CPU.

On a CPU Triton kernels run in Triton's interpreter and CUDA kernels in the simulator. It knows
what is installed, and nothing of kernels.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pagegen import views
from pagegen.compile.triton_release import release, triton_version
from pagegen.console import Screen
from pagegen.errors import CompileError, PackageError
from pagegen.simulate import host_compiler

ORDERS = 3  # seeds of the simulator: in which order threads run, and when copies land


def can_launch() -> bool:
    """Whether cubins can run here: an NVIDIA GPU that torch sees, and CuPy."""
    # torch takes a second to import, and most verbs never need it.
    import torch

    found = torch.cuda.is_available() and torch.version.cuda is not None
    return found and find_spec("cupy") is not None


def can_interpret() -> bool:
    """Whether Triton's interpreter runs here: before 3.7 it breaks on NumPy 2.4 and later."""
    if find_spec("triton") is None:
        return False
    return release(triton_version()) >= (3, 7) or release(version("numpy")) < (2, 4)


@contextmanager
def switched_on(**variables: str) -> Iterator[None]:
    """Environment variables set for a while; those that are set already stay as they are."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def prove(
    screen: Screen,
    folder: Path,
    *,
    backends: tuple[str, ...] = (),
    seed: int = 0,
    quick: bool = False,
    simulate: bool = False,
) -> views.Verdict:
    """Compare a generated package with the oracle.

    backends: only these; simulate: run CUDA kernels in the simulator, on a machine with a GPU too,
    each in several orders. Raises PackageError when nothing asked for can run here.
    """
    from pagegen.runtime.loader import load as load_package

    ops = load_package(folder)
    found = {row["backend"] for row in ops.manifest()["kernels"]}
    missing = [backend for backend in backends if backend not in found]
    if missing:
        raise PackageError(f"{folder} has no backend {', '.join(missing)}", where="--backend")
    on_gpu = can_launch() and not simulate
    if on_gpu:
        import torch

        device = torch.cuda.get_device_name()
        results = _run(screen, ops, folder, backends, "cuda", seed, quick)
    else:
        wanted = backends or (("cuda",) if simulate else tuple(sorted(found)))
        device = "cpu"
        results = _on_cpu(screen, ops, folder, wanted, seed, quick)
    verdict = views.Verdict.of(device, results)
    if quick and not backends and not simulate:
        verdict.write(folder)
    return verdict


def _run(
    screen: Screen,
    ops: Any,
    folder: Path,
    backends: tuple[str, ...],
    device: str,
    seed: int,
    quick: bool,
) -> list[Any]:
    from pagegen.verify import verify

    with screen.progress(f"verify {folder.name}") as step:
        return list(
            verify(ops, backends=backends, device=device, seed=seed, quick=quick, progress=step)
        )


def _on_cpu(
    screen: Screen, ops: Any, folder: Path, backends: tuple[str, ...], seed: int, quick: bool
) -> list[Any]:
    """Results of what can stand in for a GPU here. Raises PackageError when nothing can."""
    results: list[Any] = []
    lacking = []
    others = tuple(backend for backend in backends if backend != "cuda")
    if "triton" in others and not can_interpret():
        lacking.append("triton is left out: missing, or its interpreter needs NumPy before 2.4")
        others = tuple(backend for backend in others if backend != "triton")
    if others:
        with switched_on(TRITON_INTERPRET="1"), warnings.catch_warnings():
            # numpy, which stands in for the GPU, warns of log2(0) where a row sees no key.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")
            results += _run(screen, ops, folder, others, "cpu", seed, quick)
    if "cuda" in backends:
        try:
            host_compiler()
        except CompileError as error:
            lacking.append(f"cuda is left out: {error.asked}")
        else:
            for order in range(1 if quick else ORDERS):
                with switched_on(PAGEGEN_SIMULATE="1", PAGEGEN_SIMULATE_SEED=str(order)):
                    results += _run(screen, ops, folder, ("cuda",), "cpu", seed, quick)
    if not results:
        raise PackageError(
            f"nothing of {folder} can run here: {'; '.join(lacking)}",
            remedy="run it on a GPU, or install a C++ compiler (apt install g++)",
        )
    for line in lacking:
        screen.line(line)
    return results
