"""Triton kernels in Triton's interpreter, on CPU tensors, in a process of its own.

It knows no kernel. Triton reads TRITON_INTERPRET when it is imported; another process leaves the
tests' process, which may compile kernels or use a GPU, as it is.
"""

from __future__ import annotations

import importlib.util
import os
import traceback
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from pagegen.compile.triton_release import release, triton_version
from pagegen.emit import emit
from pagegen.plan import Backend, Plan
from tests.kernels.kernels import Arguments

STOP: Final = None  # sent instead of a job


class Interpreted:
    """Runs emitted Triton kernels elsewhere, on tensors that both processes see."""

    backend: Final[Backend] = "triton"
    arch: Final = "sm_80"  # any target: only tiles depend on it
    device: Final = torch.device("cpu")

    def __init__(self, folder: Path) -> None:
        """`folder` takes the kernels' sources. It compiles nothing, so it starts quickly."""
        if release(triton_version()) < (3, 7) and release(version("numpy")) >= (2, 4):
            pytest.skip("the interpreter of Triton 3.6 needs NumPy before 2.4")
        self.folder = folder
        self.sent: set[str] = set()
        context = torch.multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, str(folder)), daemon=True)
        self.process.start()
        other.close()

    def launch(self, plan: Plan, grid: int, arguments: Arguments) -> None:
        """Tensors move to shared memory, and keep their strides and what they are views of."""
        if not grid:
            return
        if plan.symbol not in self.sent:
            text = emit(plan, "small.yaml").text
            (self.folder / f"{plan.symbol}.py").write_text(text, encoding="utf-8")
            self.sent.add(plan.symbol)
        values = [arguments[row.name] for row in plan.params]
        for value in values:
            if isinstance(value, torch.Tensor):
                value.share_memory_()  # type: ignore[no-untyped-call]
        self.connection.send((plan.symbol, grid, values))
        fault = self.connection.recv()
        assert not fault, f"{plan.symbol} failed in the interpreter:\n{fault}"

    def stop(self) -> None:
        """End the process."""
        self.connection.send(STOP)
        self.process.join(timeout=60)


def serve(connection: Connection, folder: str) -> None:
    """The other side: one job after another, answered by what went wrong, or nothing."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)  # tensors are small, and other processes need the cores
    kernels: dict[str, Any] = {}
    while (job := connection.recv()) is not STOP:
        symbol, grid, values = job
        try:
            if symbol not in kernels:
                kernels[symbol] = load(Path(folder, f"{symbol}.py"), symbol)
            kernels[symbol][(grid,)](*values)
            connection.send("")
        except Exception:
            connection.send(traceback.format_exc())


def load(path: Path, symbol: str) -> Any:
    """The kernel's function; Triton reads its source, so it must be a file."""
    spec = importlib.util.spec_from_file_location(symbol, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, symbol)
