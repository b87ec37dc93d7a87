"""Tensor maps on the CPU: what a driver would encode for the copy engine, for the simulator's own.

It knows tensors and the simulator's encoder, and no kernel.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch

from pagegen.errors import SimulationError

MAX_RANK: Final = 5
MAP_BYTES: Final = 128
MAP_ALIGNMENT: Final = 64
REPORT_BYTES: Final = 512
SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: the driver's number


@dataclass(frozen=True)
class TensorMap:
    """A box of a tensor, as cuTensorMapEncodeTiled takes it; dimensions from the innermost.

    sizes and box in elements; strides in bytes, from the second dimension on; swizzle in bytes:
    0, 32, 64 or 128. stores: a kernel writes through it.
    """

    tensor: torch.Tensor
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    stores: bool = False


class Given(ctypes.Structure):
    """The simulator's PagegenTensorMap, field by field."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64 * MAX_RANK),
        ("strides", ctypes.c_uint64 * (MAX_RANK - 1)),
        ("box", ctypes.c_uint32 * MAX_RANK),
        ("element_strides", ctypes.c_uint32 * MAX_RANK),
        ("rank", ctypes.c_uint32),
        ("element_bytes", ctypes.c_uint32),
        ("swizzle", ctypes.c_uint32),
    )


def encode(code: ctypes.CDLL, given: TensorMap) -> bytes:
    """The map's 128 bytes, by a loaded simulator. Raises SimulationError where a driver refuses."""
    rank = len(given.sizes)
    if rank > MAX_RANK or (len(given.strides), len(given.box)) != (rank - 1, rank):
        raise SimulationError(
            f"a tensor map of {rank} sizes, {len(given.strides)} strides and {len(given.box)} "
            "sides of its box",
            allowed="1 to 5 sizes, one stride less, as many sides",
        )
    if given.swizzle not in SWIZZLES:
        raise SimulationError(f"a swizzle of {given.swizzle} bytes", allowed="0, 32, 64 or 128")
    fields = Given(
        base=given.tensor.data_ptr(),
        rank=rank,
        element_bytes=given.tensor.element_size(),
        swizzle=SWIZZLES[given.swizzle],
    )
    fields.sizes[:rank] = given.sizes
    fields.strides[: rank - 1] = given.strides
    fields.box[:rank] = given.box
    fields.element_strides[:rank] = (1,) * rank
    encoded = ctypes.create_string_buffer(MAP_BYTES)
    report = ctypes.create_string_buffer(REPORT_BYTES)
    if code.pagegen_encode_tensor_map(ctypes.byref(fields), encoded, report, REPORT_BYTES) != 0:
        raise SimulationError(f"the tensor map is refused: {report.value.decode()}")
    return encoded.raw
