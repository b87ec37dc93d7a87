"""The plan: every number of one kernel decided, nothing left to choose.

It knows neither the YAML it came from nor the template that will render it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Literal, get_args

from pagegen.archs import arch
from pagegen.dtypes import DType, dtype
from pagegen.errors import PlanError
from pagegen.wgmma import Wgmma

Kernel = Literal["decode", "prefill", "write_kv", "merge_states", "copy_blocks"]
Backend = Literal["cuda", "triton", "torch"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True)
class Constant:
    """A compile-time number of a kernel. `value` is an int, or a literal of the target language."""

    name: str  # UPPER_CASE
    value: int | str
    doc: str  # unit and meaning, one line
    reason: str = ""  # why this value; shown by `pagegen plan`


ParamType = Literal["ptr", "i64", "i32", "f32"]


@dataclass(frozen=True)
class Param:
    """A launch argument, in order. Pointers name their element type in the words of dtypes."""

    name: str  # without the _ptr suffix
    type: ParamType
    doc: str  # shape for a pointer, unit for a number
    element: str = ""  # dtype name, or "i32" / "i64", for a pointer
    const: bool = True  # the kernel only reads through it


@dataclass(frozen=True)
class Plan:
    """One kernel variant of one backend, for the targets that can run it.

    Templates test the booleans and print names, constants and params; they see nothing else.
    """

    name: str  # the spec's name
    spec_digest: str
    kernel: Kernel
    backend: Backend
    variant: str  # unique within (kernel, backend)
    targets: tuple[str, ...]  # names of archs rows; empty for torch
    query: DType
    kv: DType
    out: DType
    constants: tuple[Constant, ...]
    params: tuple[Param, ...]
    causal: bool
    window: bool
    soft_cap: bool
    csr: bool  # page lookup through indptr/indices, not a padded table
    checked: bool  # the variant that reports bad block ids and NaN
    num_warps: int
    num_stages: int
    dynamic_smem_bytes: int  # of one block; 0 for Triton, whose compiler decides
    allow_stack: bool = False  # a stack frame or spill does not fail the build
    max_registers: int = 0  # of a thread, for more blocks per SM; 0: as the compiler likes
    hnd: bool = False  # the cache's layout; kernels with runtime strides do not care
    tile_in_block: bool = False  # no tile of keys crosses a KV block: one block id for each
    wgmmas: tuple[Wgmma, ...] = ()  # products of warpgroups, each shape once

    @property
    def digest(self) -> str:
        """Content hash of every field, hexadecimal; of wgmmas where there are any."""
        names = [field.name for field in fields(self) if field.name != "wgmmas" or self.wgmmas]
        text = "\n".join(f"{name}={getattr(self, name)!r}" for name in names)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def symbol(self) -> str:
        """The kernel's function name, distinct for any two plans that differ."""
        return f"{self.name}_{self.kernel}_{self.variant}_{self.digest[:8]}"

    @property
    def num_threads(self) -> int:
        """Threads of one block."""
        return 32 * self.num_warps

    def element_type(self, row: Param) -> str:
        """The element a pointer points to, in the backend's own words."""
        integers = {"i32": ("int", "i32"), "i64": ("long long", "i64")}
        if row.element in integers:
            return integers[row.element][0 if self.backend == "cuda" else 1]
        known = dtype(row.element)
        return known.cuda if self.backend == "cuda" else known.triton

    def constant(self, name: str) -> int:
        """The integer constant called `name`; KeyError when the plan has none."""
        for row in self.constants:
            if row.name == name and isinstance(row.value, int):
                return row.value
        raise KeyError(name)


def check(plan: Plan) -> None:
    """Compare the plan with its targets and with itself.

    Raises PlanError naming the plan, the number, and the limit it breaks.
    """
    where = f"{plan.name}: {plan.backend} {plan.kernel} {plan.variant}"
    names = [row.name for row in plan.constants] + [row.name for row in plan.params]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise PlanError(f"names used twice: {', '.join(repeated)}", where=where)
    for row in plan.constants:
        if isinstance(row.value, bool) or not row.name.isupper():
            raise PlanError(f"constant {row.name} is not an UPPER_CASE number", where=where)
    if plan.backend == "torch":
        return
    if not plan.targets:
        raise PlanError("no target can run this plan", where=where)
    if not 1 <= plan.num_warps <= 32:
        raise PlanError(f"num_warps {plan.num_warps}", allowed="1 to 32", where=where)
    for name in plan.targets:
        target = arch(name)
        if plan.backend == "cuda" and target.vendor != "cuda":
            raise PlanError(f"{name} has no CUDA backend", where=where)
        if plan.dynamic_smem_bytes > target.smem_per_block_bytes:
            raise PlanError(
                f"{plan.dynamic_smem_bytes} bytes of shared memory on {name}",
                allowed=f"at most {target.smem_per_block_bytes}",
                remedy="fewer stages or a smaller tile",
                where=where,
            )
