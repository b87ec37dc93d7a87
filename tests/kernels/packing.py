"""Launch arguments as the driver takes them: packed in memory, and pointed at.

It knows no kernel and no driver: parameters and numbers in, bytes out.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagegen.plan import Param

CODES: Final = {"ptr": "P", "i64": "q", "i32": "i", "f32": "f"}  # of struct, natively aligned
LARGEST_ALIGNMENT: Final = 8
SCRATCH_POINTERS: Final = 2  # null; they end the arguments of a Triton kernel


@dataclass(frozen=True)
class Packed:
    """The bytes of one launch, and at which of them its kernel's arguments start."""

    image: bytes
    starts: tuple[int, ...]

    def in_memory(self) -> tuple[int, object]:
        """(address of a void*[] to the arguments, what must live until the launch)."""
        buffer = ctypes.create_string_buffer(self.image, len(self.image))
        base = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * len(self.starts))(*(base + start for start in self.starts))
        return ctypes.addressof(pointers), (buffer, pointers)


def as_struct(params: Sequence[Param], values: Sequence[float]) -> Packed:
    """One argument, the struct of all: what a CUDA kernel takes."""
    image, _ = _laid_out(params, values)
    return Packed(image, (0,))


def as_fields(params: Sequence[Param], values: Sequence[float]) -> Packed:
    """An argument each, and two null pointers: what a compiled Triton kernel takes."""
    image, starts = _laid_out(params, values)
    scratch = [len(image) + 8 * i for i in range(SCRATCH_POINTERS)]
    return Packed(image + bytes(8 * SCRATCH_POINTERS), (*starts, *scratch))


def _laid_out(params: Sequence[Param], values: Sequence[float]) -> tuple[bytes, list[int]]:
    """Fields at their C offsets, padded as a struct is, and those offsets."""
    image = b""
    starts = []
    for row, value in zip(params, values, strict=True):
        code = CODES[row.type]
        size = struct.calcsize(code)
        image = image.ljust(-(-len(image) // size) * size, b"\0")
        starts.append(len(image))
        image += struct.pack(code, value)
    return image.ljust(-(-len(image) // LARGEST_ALIGNMENT) * LARGEST_ALIGNMENT, b"\0"), starts
