"""The products of warpgroups that a kernel issues: one row a shape, with what its PTX must list.

It knows the instruction's operands, and neither a kernel nor a template.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final

from pagegen.dtypes import DType

PTX_TYPES: Final = {"bf16": "bf16", "fp16": "f16", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}
COLUMNS: Final = 100  # of emitted text
NAMES_INDENT: Final = 8  # with the quote before and after
RESULTS_INDENT: Final = 8


@dataclass(frozen=True)
class Wgmma:
    """d [64, n] in fp32 += a [64, 32 bytes] b [32 bytes, n]; n: 8 to 256, a multiple of 8."""

    element: DType  # of a and b
    n: int
    a_in_registers: bool = False

    @property
    def cuda(self) -> str:
        """The element type in emitted CUDA."""
        return self.element.cuda

    @property
    def ptx(self) -> str:
        """The element type in PTX."""
        return PTX_TYPES[self.element.name]

    @property
    def shape(self) -> str:
        """As PTX writes it."""
        return f"m64n{self.n}k{32 // self.element.num_bytes}"

    @property
    def registers(self) -> int:
        """Registers of d in a thread."""
        return self.n // 2

    @property
    def accumulate(self) -> int:
        """The number of the operand that says whether d is added to."""
        return self.registers + (5 if self.a_in_registers else 2)

    @property
    def majors(self) -> tuple[str, ...]:
        """What says which dimension of an operand in shared memory is contiguous."""
        if self.element.num_bytes == 1:
            return ()
        return ("B_MAJOR",) if self.a_in_registers else ("A_MAJOR", "B_MAJOR")

    @property
    def named_registers(self) -> tuple[str, ...]:
        """d as operands of the instruction, in lines."""
        text = ", ".join(f"%{i}" for i in range(self.registers))
        return tuple(textwrap.wrap(text, COLUMNS - NAMES_INDENT))

    @property
    def operands(self) -> str:
        """What follows d: a, b, whether to add, signs, and which are MN-major."""
        first = self.registers
        a = f"%{first}"
        if self.a_in_registers:
            a = f"{{ %{first}, %{first + 1}, %{first + 2}, %{first + 3}}}"
        numbers = [f"%{self.accumulate + 1 + i}" for i in range(len(self.majors))]
        return ", ".join([a, f"%{self.accumulate - 1}", "accumulate", "1", "1", *numbers])

    @property
    def results(self) -> tuple[str, ...]:
        """d as the compiler knows it, in lines."""
        text = ", ".join(f'"+f"(d[{i}])' for i in range(self.registers))
        return tuple(textwrap.wrap(text, COLUMNS - RESULTS_INDENT))

    @property
    def values(self) -> str:
        """What the instruction reads besides d."""
        a = ['"l"(a)']
        if self.a_in_registers:
            a = [f'"r"(a[{i}])' for i in range(4)]
        majors = (f'"n"({name})' for name in self.majors)
        return ", ".join([*a, '"l"(b)', '"r"(accumulate)', *majors])
