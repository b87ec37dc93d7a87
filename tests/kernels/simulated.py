"""CUDA kernels in the host simulator, on CPU tensors as they are."""

from __future__ import annotations

from typing import Final

import pytest
import torch

from pagegen.emit import emit
from pagegen.errors import CompileError
from pagegen.plan import Backend, Plan
from pagegen.simulate import host_compiler, simulate
from tests.kernels.kernels import Arguments


class Simulated:
    """Runs emitted CUDA kernels; what a GPU would not allow fails the test."""

    backend: Final[Backend] = "cuda"
    arch: Final = "sm_90a"
    device: Final = torch.device("cpu")

    def __init__(self, seed: int) -> None:
        """seed: chooses an order of threads, blocks and copies. Skips without a C++ compiler."""
        try:
            host_compiler()
        except CompileError as error:
            pytest.skip(error.asked)
        self.seed = seed
        self.texts: dict[str, str] = {}

    def launch(self, plan: Plan, grid: int, arguments: Arguments) -> None:
        """Run one launch; the compiled kernel is kept."""
        if not grid:
            return
        if plan.symbol not in self.texts:
            self.texts[plan.symbol] = emit(plan, "small.yaml").text
        simulate(
            self.texts[plan.symbol],
            symbol=plan.symbol,
            file_name=f"{plan.kernel}_{plan.variant}.cu",
            params=[(row.name, row.type) for row in plan.params],
            grid=grid,
            num_threads=plan.num_threads,
            shared_bytes=plan.dynamic_smem_bytes,
            values=arguments,
            seed=self.seed,
        )

    def stop(self) -> None:
        """Nothing was started."""
