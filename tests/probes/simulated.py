"""Probes in the simulator."""

from __future__ import annotations

import numpy as np
import torch

from pagegen.simulate import Simulator, TensorMap
from tests.probes.probe import SYMBOL, Array, Arrays, Probe

SIGNED = {"uint16": "int16", "uint32": "int32"}  # for older torch


def run(probe: Probe, seed: int) -> Arrays:
    """The outputs of a probe. Raises SimulationError."""
    outputs = {name: array.copy() for name, array in probe.outputs().items()}
    inputs = {name: array.copy() for name, array in probe.inputs().items()}
    tensors = {name: tensor(array) for name, array in (outputs | inputs).items()}
    params = [(name, "ptr") for name in tensors]
    values: dict[str, torch.Tensor | TensorMap | int | float | None] = dict(tensors)
    for name, box in probe.maps.items():
        stores = box.array in outputs
        params.append((name, "map"))
        values[name] = TensorMap(
            tensors[box.array], box.sizes, box.strides, box.box, box.swizzle, stores
        )
    simulator = Simulator.of(probe.text(), SYMBOL, f"{probe.name}.cu")
    simulator.launch(
        params,
        grid=probe.grid,
        num_threads=probe.threads,
        shared_bytes=probe.shared_bytes,
        values=values,
        seed=seed,
        workers=probe.grid,
    )
    return outputs


def tensor(array: Array) -> torch.Tensor:
    """A view of the array."""
    return torch.from_numpy(array.view(np.dtype(SIGNED.get(array.dtype.name, array.dtype.name))))
