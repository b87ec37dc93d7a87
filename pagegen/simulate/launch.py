"""One launch on the CPU: arguments packed as a GPU's launch packs them, and faults made readable.

It knows tensors' extents and the simulator's interface, and no kernel.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch

from pagegen.errors import SimulationError
from pagegen.simulate.library import library
from pagegen.simulate.tensor_map import MAP_ALIGNMENT, TensorMap, encode

CODES: Final = {"ptr": "Q", "i64": "q", "i32": "i", "f32": "f"}  # of struct
REPORT_BYTES: Final = 4096
SEED: Final = "PAGEGEN_SIMULATE_SEED"
SANITIZERS: Final = "PAGEGEN_SIMULATE_SANITIZE"
READ_ONLY: Final = re.compile(r"^  const [\w ]+\* (\w+);", re.MULTILINE)

Value = torch.Tensor | TensorMap | int | float | None


class Range(ctypes.Structure):
    """Memory that a launch may touch."""

    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("writable", ctypes.c_uint64),
    )


class Launch(ctypes.Structure):
    """The simulator's PagegenLaunch, field by field."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("params", ctypes.c_void_p),
        ("ranges", ctypes.c_void_p),
        ("report", ctypes.c_void_p),
        ("figures", ctypes.c_uint64 * 2),
        ("num_ranges", ctypes.c_uint32),
        ("report_bytes", ctypes.c_uint32),
        ("grid", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Figures:
    """What a launch counted."""

    bank_conflicts: int  # rows of an ldmatrix that met another in its banks
    switches: int  # from thread to thread


def simulate(
    text: str,
    *,
    symbol: str,
    file_name: str,
    params: Sequence[tuple[str, str]],
    grid: int,
    num_threads: int,
    shared_bytes: int,
    values: Mapping[str, Value],
    seed: int | None = None,
) -> Figures:
    """Run a launch of an emitted CUDA kernel on CPU tensors.

    params: (name, type) of every argument in order, type one of ptr, i64, i32, f32, map. values:
    by name; a pointer without one is null. seed: chooses the order of threads and blocks and when
    copies land; default: $PAGEGEN_SIMULATE_SEED or 0. Raises SimulationError where a GPU would
    deadlock, race, or read what it must not, or a driver refuses a tensor map; CompileError without
    a C++ compiler.
    """
    simulator = Simulator.of(text, symbol, file_name, os.environ.get(SANITIZERS, ""))
    chosen = int(os.environ.get(SEED, "0")) if seed is None else seed
    return simulator.launch(
        params, grid=grid, num_threads=num_threads, shared_bytes=shared_bytes, values=values,
        seed=chosen,
    )  # fmt: skip


@dataclass(frozen=True)
class Simulator:
    """One kernel, compiled for the CPU and loaded."""

    symbol: str
    file_name: str
    path: Path
    code: ctypes.CDLL
    read_only: frozenset[str]

    @staticmethod
    @cache
    def of(text: str, symbol: str, file_name: str, sanitizers: str = "") -> Simulator:
        """The kernel of an emitted source, compiled unless that was done before."""
        path = library(text, symbol, file_name, sanitizers=sanitizers)
        code = ctypes.CDLL(str(path))
        code.pagegen_simulate.argtypes = (ctypes.c_void_p,)
        code.pagegen_encode_tensor_map.argtypes = (
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32,
        )  # fmt: skip
        code.pagegen_image.restype = ctypes.c_void_p
        return Simulator(symbol, file_name, path, code, frozenset(READ_ONLY.findall(text)))

    def launch(
        self,
        params: Sequence[tuple[str, str]],
        *,
        grid: int,
        num_threads: int,
        shared_bytes: int,
        values: Mapping[str, Value],
        seed: int,
        workers: int | None = None,
    ) -> Figures:
        """Run one launch; see `simulate`. workers: blocks at once; default: a core each."""
        packed, ranges = self._pack(params, values)
        arguments = ctypes.create_string_buffer(len(packed) + MAP_ALIGNMENT)
        address = -(-ctypes.addressof(arguments) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        ctypes.memmove(address, packed, len(packed))
        report = ctypes.create_string_buffer(REPORT_BYTES)
        launch = Launch(
            seed=seed,
            params=address,
            ranges=ctypes.addressof(ranges),
            report=ctypes.addressof(report),
            num_ranges=len(ranges),
            report_bytes=REPORT_BYTES,
            grid=grid,
            threads=num_threads,
            shared_bytes=shared_bytes,
            workers=workers or os.cpu_count() or 1,
        )
        status = self.code.pagegen_simulate(ctypes.byref(launch))
        if status == 1:
            pointers = [name for name, kind in params if kind in ("ptr", "map")]
            raise self._error(report.value.decode(), pointers)
        if status != 0:
            raise SimulationError(
                f"{self.symbol}: {num_threads} threads and {shared_bytes} bytes of shared memory",
                allowed="whole warps, up to 1024 threads, and 256 KB",
            )
        return Figures(*launch.figures)

    def _pack(
        self, params: Sequence[tuple[str, str]], values: Mapping[str, Value]
    ) -> tuple[bytes, ctypes.Array[Range]]:
        """The arguments as one struct, and the memory behind the pointers, in order."""
        packed = bytearray()
        ranges = []
        for name, kind in params:
            value = values.get(name)
            if kind == "map":
                assert isinstance(value, TensorMap), name
                ranges.append(span(value.tensor, value.stores))
                align(packed, MAP_ALIGNMENT)
                packed += encode(self.code, value)
                continue
            if kind == "ptr":
                assert value is None or isinstance(value, torch.Tensor), name
                ranges.append(span(value, name not in self.read_only))
                value = ranges[-1].begin
            assert isinstance(value, (int, float)), name
            field = struct.pack(f"={CODES[kind]}", value)
            align(packed, len(field))
            packed += field
        align(packed, MAP_ALIGNMENT)
        return bytes(packed), (Range * len(ranges))(*ranges)

    def _error(self, report: str, pointers: list[str]) -> SimulationError:
        """A fault in words: what, which block and thread, which line of the kernel's file."""
        block, thread, primitive, line, code, last, last_line, text = report.split("\t", 7)
        text = re.sub(r"argument (\d+)$", lambda found: pointers[int(found[1])], text)
        place = f"{self.file_name}:{line}"
        if line == "0":
            found = self._line_of(int(code, 16)) if code != "(nil)" else ""
            place = found or f"{self.file_name}, after {last} in line {last_line}"
        what = f"{primitive}: " if primitive else ""
        who = f"block {block}" + (f", thread {thread}" if thread != "-1" else "")
        return SimulationError(f"{self.symbol}: {who}: {what}{text}", where=place)

    def _line_of(self, code: int) -> str:
        """file:line of an address in the loaded library; empty where no tool can tell."""
        tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
        base = self._base()
        if tool is None or base is None:
            return ""
        done = subprocess.run(
            [tool, "-e", str(self.path), hex(code - base - 1)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = done.stdout.split(" ")[0].strip()
        if ":" not in found or found.startswith("??"):
            return ""
        file, line = found.rsplit(":", 1)
        return f"{Path(file).name if file.endswith('.h') else self.file_name}:{line}"

    def _base(self) -> int | None:
        """Where the library is loaded: its first mapping."""
        try:
            for row in Path("/proc/self/maps").read_text().splitlines():
                if row.endswith(str(self.path)):
                    return int(row.split("-")[0], 16)
        except OSError:
            pass
        return None


def align(packed: bytearray, num_bytes: int) -> None:
    """Pad to a multiple of `num_bytes`."""
    packed += bytes(-len(packed) % num_bytes)


def span(tensor: torch.Tensor | None, writable: bool) -> Range:
    """The memory of a tensor; none for None."""
    if tensor is None:
        return Range(0, 0, 0)
    begin = tensor.data_ptr()
    return Range(begin, begin + extent(tensor), writable)


def extent(tensor: torch.Tensor) -> int:
    """Bytes from a view's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.element_size()
