"""A probe: a small kernel around one primitive, from inputs by formula to outputs.

It is emitted from the same partials as every kernel, and runs on a GPU and in the simulator. It
needs numpy and Jinja only, so that a machine with a GPU and no compiler of ours can run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jinja2
import numpy as np
import numpy.typing as npt

from pagegen.wgmma import Wgmma

TEMPLATES: Final = Path(__file__).parents[2] / "templates"
SYMBOL: Final = "probe"
ELEMENTS: Final = {
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "int32": "int",
    "float32": "float",
}  # in CUDA
# What lies outside of the machine's part: plain C++ that both sides compile.
PLAIN: Final = ("wgmma_descriptor",)

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Box:
    """A tensor map over one of the arrays, as cuTensorMapEncodeTiled takes it."""

    array: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # bytes, from the second dimension on
    box: tuple[int, ...]
    swizzle: int = 0  # bytes


@dataclass(frozen=True)
class Probe:
    """One kernel, what it is given, and what must come out.

    body: CUDA with the entry `probe`, after its partials and `Params`, whose fields are outputs,
    inputs and maps by name. outputs: their initial contents. reference: the outputs by an
    independent way. rtol, atol: 0 for the same bits; one NaN of a float is as good as another.
    """

    name: str
    partials: tuple[str, ...]
    body: str
    inputs: Callable[[], Arrays]
    outputs: Callable[[], Arrays]
    reference: Callable[[Arrays], Arrays]
    maps: Mapping[str, Box] = field(default_factory=dict)
    wgmmas: tuple[Wgmma, ...] = ()
    grid: int = 1
    threads: int = 32
    shared_bytes: int = 0
    rtol: float = 0.0
    atol: float = 0.0

    def text(self) -> str:
        """The CUDA source."""
        guarded = [name for name in self.partials if name not in PLAIN]
        plain = [name for name in self.partials if name in PLAIN]
        parts = ["#ifndef PAGEGEN_SIMULATOR", *map(include, guarded), "#endif"]
        parts += [*map(include, plain), self.params(), self.body]
        text = environment().from_string("\n".join(parts))
        return text.render(plan=SimpleNamespace(wgmmas=self.wgmmas))

    def params(self) -> str:
        """The struct of arguments."""
        rows = [f"  {ELEMENTS[a.dtype.name]}* {name};" for name, a in self.outputs().items()]
        rows += [f"  const {ELEMENTS[a.dtype.name]}* {name};" for name, a in self.inputs().items()]
        rows += [f"  TensorMap {name};" for name in self.maps]
        return "\n".join(["struct Params {", *rows, "};"])


def include(name: str) -> str:
    return f'{{% include "cuda/_{name}.cu.j2" %}}\n'


def environment() -> jinja2.Environment:
    """As emit's, from the checkout."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def kernel(body: str, *, threads: int = 32, blocks_per_sm: int = 1) -> str:
    """A body as the entry of a probe."""
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks_per_sm})\n'
        f"    {SYMBOL}(const __grid_constant__ Params p) {{\n{body.strip(chr(10))}\n}}\n"
    )


def mixed(count: int, seed: int = 1) -> npt.NDArray[np.uint32]:
    """32-bit words by a formula, the same everywhere."""
    x = np.arange(seed, seed + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return (x >> np.uint64(32)).astype(np.uint32)


def differences(probe: Probe, got: Arrays, wanted: Arrays) -> list[str]:
    """What differs between two sets of outputs, in words; empty if nothing does."""
    found = []
    for name, want in wanted.items():
        have = got[name]
        if probe.rtol or probe.atol:
            same = np.isclose(have, want, probe.rtol, probe.atol, equal_nan=True)
        else:
            bits = f"u{want.dtype.itemsize}"
            same = have.view(bits) == want.view(bits)
            if want.dtype.kind == "f":
                same |= np.isnan(have) & np.isnan(want)
        if not same.all():
            at = np.unravel_index(int(np.argmin(same)), want.shape)
            place = ", ".join(str(int(i)) for i in at)
            found.append(
                f"{probe.name}: {name}[{place}] is {have[at]!r}, not {want[at]!r}; "
                f"{int((~same).sum())} of {same.size} differ"
            )
    return found
