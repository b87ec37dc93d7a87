"""Packed launch arguments against the emitted text: what each kernel finds where it looks."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from pagegen.emit import emit
from pagegen.plan import KERNELS, Kernel, Plan
from tests.kernels.packing import SCRATCH_POINTERS, as_fields, as_struct
from tests.rendering import plan_of
from tests.specimens import specimen

C_TYPES: dict[str, Any] = {
    "long long": ctypes.c_longlong,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "ptr": ctypes.c_void_p,
    "i64": ctypes.c_longlong,
    "i32": ctypes.c_int,
    "f32": ctypes.c_float,
}
MEMBER = re.compile(r"^  (?:const )?([\w ]+?)(\*?) (\w+);", re.MULTILINE)
kernels = pytest.mark.parametrize("kernel", KERNELS)
lookups = pytest.mark.parametrize("lookup", ["table", "csr"])


def values_of(plan: Plan) -> list[float]:
    """A number for each argument that no other has, as wide as its type."""
    bases = {"ptr": 2**47, "i64": -(2**40), "i32": 2**30, "f32": 0.5}
    return [bases[row.type] + index for index, row in enumerate(plan.params)]


def read(image: bytes, start: int, kind: str) -> float:
    """What C finds at `start`."""
    found: float = C_TYPES[kind].from_buffer_copy(image, start).value
    return found


@kernels
@lookups
def test_a_struct_has_the_layout_of_the_emitted_one(kernel: Kernel, lookup: str) -> None:
    plan = plan_of(specimen(lookup=lookup), kernel, "cuda", "checked")
    text = emit(plan, "specimen.yaml").text
    body = text.split("struct Params {\n")[1].split("};")[0]
    members = [
        (name, ctypes.c_void_p if pointer else C_TYPES[kind])
        for kind, pointer, name in MEMBER.findall(body)
    ]
    assert len(members) == len(body.splitlines()), "every line is a member"
    emitted: Any = type("Params", (ctypes.Structure,), {"_fields_": members})
    values = values_of(plan)
    packed = as_struct(plan.params, values)
    assert packed.starts == (0,) and len(packed.image) >= ctypes.sizeof(emitted)
    found = emitted.from_buffer_copy(packed.image)
    assert [getattr(found, name) for name, _ in members] == values


@kernels
@lookups
def test_fields_are_in_the_order_of_the_emitted_arguments(kernel: Kernel, lookup: str) -> None:
    plan = plan_of(specimen(lookup=lookup), kernel, "triton", "checked")
    text = emit(plan, "specimen.yaml").text
    names = re.findall(r"^    (\w+),", text.split(f"def {plan.symbol}(\n")[1].split("):")[0], re.M)
    values = values_of(plan)
    packed = as_fields(plan.params, values)
    assert len(packed.starts) == len(names) + SCRATCH_POINTERS
    given = dict(zip(names, packed.starts, strict=False))
    for row, value in zip(plan.params, values, strict=True):
        name = f"{row.name}_ptr" if row.type == "ptr" else row.name
        assert read(packed.image, given[name], row.type) == value
    assert all(read(packed.image, start, "ptr") is None for start in packed.starts[len(names) :])


def test_the_driver_is_pointed_at_the_bytes() -> None:
    plan = plan_of(specimen(), "copy_blocks", "triton")
    packed = as_fields(plan.params, values_of(plan))
    address, alive = packed.in_memory()
    pointers = (ctypes.c_void_p * len(packed.starts)).from_address(address)
    for row, value, pointer in zip(plan.params, values_of(plan), pointers, strict=False):
        assert pointer is not None and C_TYPES[row.type].from_address(pointer).value == value
    del alive
