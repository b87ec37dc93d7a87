"""What a test of kernels is given: something that launches plans, wherever that may be.

It knows no backend and no device. Tensors of a launch are on the CPU; a launcher whose kernels run
elsewhere takes them there and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from pagegen.plan import Backend, Plan

Arguments = Mapping[str, Tensor | int | float]  # by the names of plan.params; others are ignored


class Kernels(Protocol):
    """One way to run the kernels of one backend."""

    @property
    def backend(self) -> Backend:
        """Whose kernels it runs."""

    @property
    def arch(self) -> str:
        """The target that plans are made for."""

    @property
    def device(self) -> torch.device:
        """Where kernels see their tensors."""

    def launch(self, plan: Plan, grid: int, arguments: Arguments) -> None:
        """One launch of `grid` thread blocks, none if 0; it is over when this returns.

        The arguments' memory then holds what the kernel wrote: views stay views, and tensors that
        share memory share it in the kernel too.
        """

    def stop(self) -> None:
        """End what was started for it."""
