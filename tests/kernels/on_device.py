"""Compiled kernels on the GPU at hand, launched as a package launches them: raw, through CuPy.

It knows no kernel: a plan says what is compiled, with which arguments, and with how much memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import torch

from pagegen.archs import ARCHS, arch
from pagegen.compile import Cache, compile_source
from pagegen.emit import emit
from pagegen.plan import Backend, Plan
from tests.kernels.kernels import Arguments
from tests.kernels.mirror import Mirror
from tests.kernels.packing import Packed, as_fields, as_struct

STATIC_SMEM_BYTES: Final = 48 * 1024  # a block may use so much without asking


def arch_of(capability: tuple[int, int]) -> str:
    """The target with the most features that runs on a device of `capability`; "" if none does."""
    names = [row.name for row in ARCHS if row.runs_on(capability)]
    return names[-1] if names else ""


@dataclass(frozen=True)
class Loaded:
    """A kernel in the driver's hands. `module` keeps its code loaded."""

    handle: int  # CUfunction
    threads: int
    smem_bytes: int  # dynamic, of a block
    module: Any


class OnDevice:
    """Runs the kernels of one backend on torch's current GPU and stream."""

    def __init__(self, backend: Backend) -> None:
        """Skips the test where nothing can be launched, saying why."""
        pytest.importorskip("cupy", reason="launching compiled kernels takes CuPy")
        self.backend = backend
        self.device = torch.device("cuda", torch.cuda.current_device())
        capability = torch.cuda.get_device_capability(self.device)
        self.arch = arch_of(capability)
        if not self.arch:
            pytest.skip(f"no target runs on a device of capability {capability}")
        torch.zeros(1, device=self.device)  # torch's CUDA context becomes the current one
        self.cache = Cache.default()  # shared by the processes of a run
        self.loaded: dict[str, Loaded] = {}

    def launch(self, plan: Plan, grid: int, arguments: Arguments) -> None:
        """Compile if need be, launch, wait, and bring back what was written."""
        if not grid:
            return
        from cupy.cuda import driver

        kernel = self._kernel(plan)
        mirror = Mirror(self.device)
        address, alive = self._packed(plan, arguments, mirror).in_memory()
        stream = torch.cuda.current_stream(self.device).cuda_stream
        driver.launchKernel(
            kernel.handle, grid, 1, 1, kernel.threads, 1, 1, kernel.smem_bytes, stream, address, 0
        )
        # Errors of the kernel surface here, in the test that it belongs to.
        torch.cuda.synchronize(self.device)
        del alive
        mirror.bring_back()

    def stop(self) -> None:
        """Unload all kernels."""
        self.loaded.clear()

    def _packed(self, plan: Plan, arguments: Arguments, mirror: Mirror) -> Packed:
        values: list[float] = []
        for row in plan.params:
            value = arguments[row.name]
            values.append(
                mirror.view(value).data_ptr() if isinstance(value, torch.Tensor) else value
            )
        return (as_struct if self.backend == "cuda" else as_fields)(plan.params, values)

    def _kernel(self, plan: Plan) -> Loaded:
        """The plan's function, compiled and loaded at its first launch."""
        if plan.digest not in self.loaded:
            self.loaded[plan.digest] = self._load(plan)
        return self.loaded[plan.digest]

    def _load(self, plan: Plan) -> Loaded:
        from cupy.cuda import driver, function

        # Whether a compiler's release spills is the compile tests' business: it must be right.
        plan = replace(plan, allow_stack=True)
        artifact = compile_source(plan, emit(plan, "small.yaml"), arch(self.arch), self.cache)
        smem_bytes = artifact.resources.dynamic_smem_bytes
        module = function.Module()
        module.load(artifact.code)
        handle = module.get_function(artifact.symbol).ptr
        if smem_bytes > STATIC_SMEM_BYTES:
            attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(handle, attribute, smem_bytes)
        return Loaded(handle, 32 * artifact.resources.num_warps, smem_bytes, module)
