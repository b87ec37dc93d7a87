"""Probes on a GPU, one launch each, by the driver alone.

It runs in a process of its own: a kernel that hangs or faults takes the process with it, and
nothing else.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from tests.probes.probe import SYMBOL, Array, Arrays, Box, Probe
from tests.probes.table import PROBES

MAP_BYTES: Final = 128
MAP_ALIGNMENT: Final = 64
SWIZZLES: Final = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
TYPES: Final = {1: "UINT8", 2: "UINT16", 4: "UINT32"}


class DriverError(Exception):
    """A call of the driver that did not succeed."""


def checked(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver returns besides its status."""
    status, *values = answer
    if int(status) != 0:
        raise DriverError(str(status))
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True)
class Device:
    """The first GPU, and its name."""

    name: str

    @staticmethod
    def open() -> Device:
        """Make the GPU current. Raises DriverError, or RuntimeError where it is not sm_90."""
        from cuda.bindings import driver

        checked(driver.cuInit(0))
        device = checked(driver.cuDeviceGet(0))
        context = checked(driver.cuDevicePrimaryCtxRetain(device))
        checked(driver.cuCtxSetCurrent(context))
        kind = driver.CUdevice_attribute
        major = checked(
            driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
        )
        if int(major) != 9:
            raise RuntimeError(f"compute capability {major}.x; probes are recorded on 9.0")
        name = checked(driver.cuDeviceGetName(64, device))
        return Device(name.split(b"\0")[0].decode())

    def run(self, probe: Probe, cubin: bytes) -> Arrays:
        """The outputs of a probe. Raises DriverError."""
        from cuda.bindings import driver

        module = checked(driver.cuModuleLoadData(cubin))
        function = checked(driver.cuModuleGetFunction(module, SYMBOL.encode()))
        attribute = driver.CUfunction_attribute
        checked(
            driver.cuFuncSetAttribute(
                function,
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                probe.shared_bytes,
            )
        )
        outputs = dict(probe.outputs())
        arrays: dict[str, Array] = {**outputs, **probe.inputs()}
        places = {name: uploaded(array) for name, array in arrays.items()}
        packed = bytearray()
        for place in places.values():
            packed += place.to_bytes(8, "little")
        for box in probe.maps.values():
            packed += bytes(-len(packed) % MAP_ALIGNMENT)
            packed += encoded(box, places[box.array], arrays[box.array].itemsize)
        packed += bytes(-len(packed) % MAP_ALIGNMENT)
        buffer = ctypes.create_string_buffer(bytes(packed), len(packed))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        checked(
            driver.cuLaunchKernel(
                function,
                *(probe.grid, 1, 1),
                *(probe.threads, 1, 1),
                probe.shared_bytes,
                0,
                ctypes.addressof(pointers),
                0,
            )
        )
        checked(driver.cuCtxSynchronize())
        results = {name: downloaded(places[name], array) for name, array in outputs.items()}
        for place in places.values():
            checked(driver.cuMemFree(place))
        checked(driver.cuModuleUnload(module))
        return results


def uploaded(array: Array) -> int:
    """Device memory with the array's bytes, and 256 more."""
    from cuda.bindings import driver

    kept = np.ascontiguousarray(array)
    place = int(checked(driver.cuMemAlloc(kept.nbytes + 256)))
    checked(driver.cuMemcpyHtoD(place, kept.ctypes.data, kept.nbytes))
    return place


def downloaded(place: int, like: Array) -> Array:
    from cuda.bindings import driver

    out = np.empty_like(like)
    checked(driver.cuMemcpyDtoH(out.ctypes.data, place, out.nbytes))
    return out


def encoded(box: Box, place: int, element_bytes: int) -> bytes:
    """A tensor map by the driver."""
    from cuda.bindings import driver

    rank = len(box.sizes)
    kinds = driver.CUtensorMapDataType
    encoded_map = checked(
        driver.cuTensorMapEncodeTiled(
            getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{TYPES[element_bytes]}"),
            rank,
            place,
            [driver.cuuint64_t(size) for size in box.sizes],
            [driver.cuuint64_t(stride) for stride in box.strides],
            [driver.cuuint32_t(side) for side in box.box],
            [driver.cuuint32_t(1)] * rank,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[box.swizzle]}"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(int(encoded_map.getPtr()), MAP_BYTES)


def serve(requests: Connection) -> None:
    """Answer (name, cubin) with outputs or an error's text, until told None."""
    try:
        device = Device.open()
    except Exception as error:  # reported by the other side, whatever it is
        requests.send(("failed", f"{type(error).__name__}: {error}"))
        return
    requests.send(("ready", device.name))
    while (request := requests.recv()) is not None:
        name, cubin = request
        try:
            requests.send(("done", device.run(PROBES[name], cubin)))
        except Exception as error:
            requests.send(("failed", f"{type(error).__name__}: {error}"))
