"""What a changed kernel must survive: calls with known results, the sharpest and cheapest first.

It knows ops and their meaning, and no kernel's inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from pagegen import cases, oracle
from pagegen.cases import TOLERANCE, Case
from pagegen.plan import Kernel, Plan
from pagegen.spec import Spec
from pagegen.verify import lse_fault, relative_error
from tests.cache_ops import token_rows
from tests.cache_ops_contract import CONTRACT, Check
from tests.kernels.calls import Result, run_decode, run_prefill
from tests.kernels.specs import shape_of
from tests.mutation import faults
from tests.mutation.launching import Simulated, SimulatedOps
from tests.mutation.specs import plans_of

PREFIX = {"write_kv": "write_", "merge_states": "merge_", "copy_blocks": "copy_"}
GUARD = -7.0


@dataclass(frozen=True)
class Trial:
    """Raises AssertionError or SimulationError if the kernels do wrong."""

    name: str
    run: Callable[[Simulated], None]


def trials(spec: Spec, plan: Plan) -> tuple[Trial, ...]:
    """Everything that one variant of one kernel of a spec must do."""
    if plan.kernel in PREFIX:
        return tuple(moving(spec, plan.kernel))
    return (*attention(spec, plan), *(faulty(spec, plan) if plan.checked else ()))


def moving(spec: Spec, kernel: Kernel) -> Iterator[Trial]:
    """The contract of write_kv, merge_states or copy_blocks."""
    default, checked = plans_of(spec, "default"), plans_of(spec, "checked")

    def trial(check: Check) -> Trial:
        def run(kernels: Simulated) -> None:
            check(SimulatedOps(kernels, default), SimulatedOps(kernels, checked), spec)

        return Trial(check.__name__, run)

    yield from (trial(each) for each in CONTRACT if each.__name__.startswith(PREFIX[kernel]))


def attention_cases(spec: Spec, kernel: Kernel) -> Iterator[tuple[Case, int]]:
    """(call, parts that its sequences are cut into at most)."""
    shape = shape_of(spec)
    size, window = spec.block_size, spec.window
    if kernel == "decode":
        lengths = sorted({1, 15, 16, 17, 63, 64, 65, 129, size - 1, size, size + 1, 300} - {0})
        base = cases.make_case(shape, "ragged", [0, *lengths], [1] * (len(lengths) + 1), seed=1)
        yield base, 1
        yield cases.strided(base, spec.layout), 3
        long = cases.make_case(shape, "long", [777 + window, 2200, 1700], [1] * 3, seed=2)
        yield long, 1
        yield long, 13
        yield sharp(spec, long), 13
        yield exact(spec, [1]), 1
        single = cases.make_case(shape, "single", [5, 2 * window + 5], [1, 1], seed=3)
        yield cases.extreme(single), 1
        yield replace(single, name="sharp", q=single.q * 8), 2
        return
    few, more = [7, size + 5, 70, 133, 2 * size], [7, 5, 1, 33, size]
    base = cases.make_case(shape, "chunks", few, more, seed=4)
    yield base, 1
    yield cases.strided(base, spec.layout), 1
    yield cases.make_case(shape, "prompt", [150], [150], seed=5), 1
    yield cases.make_case(shape, "empty", [9, 0, 5, 40, 0], [0, 0, 5, 0, 3], seed=6), 1
    yield cases.make_case(shape, "more queries", [2, 30], [5, 3], seed=7), 1
    yield cases.make_case(shape, "long", [700, 64], [3, 64], seed=8), 1
    yield exact(spec, [40]), 1
    many = [int(i % 4 == 0) for i in range(130)]
    yield cases.make_case(shape, "many", [1 + i % 3 for i in range(130)], many, seed=9), 1
    single = cases.make_case(shape, "single", [10, 33], [10, 4], seed=10)
    yield cases.extreme(single), 1
    yield replace(single, name="sharp", q=single.q * 8), 1
    yield replace(base, name="sharper", q=base.q * 64), 1


def sharp(spec: Spec, case: Case) -> Case:
    """Weights that differ by more than a float holds; the last query means its last key."""
    q = case.q * 64
    block, offset = divmod(int(case.seq_lens[-1]) - 1, spec.block_size)
    block_id = int(faults.entries(case, len(case.seq_lens) - 1)[block])
    keys = token_rows(case.k_cache, spec)[block_id, offset]
    q[-1] = keys.repeat_interleave(spec.group, 0) * 8
    return replace(case, name=f"{case.name} and sharp", q=q)


def exact(spec: Spec, q_lens: list[int]) -> Case:
    """Whole blocks, the first of the cache among them, and a table that ends with the last."""
    count = -(-100 // spec.block_size)
    case = cases.make_case(shape_of(spec), "exact", [count * spec.block_size], q_lens, seed=11)
    if isinstance(case.lookup, tuple):
        lookup: oracle.Lookup = (case.lookup[0], case.lookup[1][:count] - 1)
    else:
        lookup = case.lookup[:, :count] - 1
    return replace(case, lookup=lookup, k_cache=case.k_cache[1:], v_cache=case.v_cache[1:])


def attention(spec: Spec, plan: Plan) -> Iterator[Trial]:
    """Calls against the oracle, out lying between guards."""

    def trial(case: Case, num_splits: int, write_lse: bool) -> Trial:
        want = expected(spec, case)

        def run(kernels: Simulated) -> None:
            memory = torch.full(
                (case.q.shape[0] + 2, spec.num_q_heads + 1, spec.head_dim_v + 8), GUARD
            ).to(case.q.dtype)
            out = memory[1:-1, :-1, :-8].fill_(math.nan)
            kernels.overrides = {"write_lse": int(write_lse)}
            found = call(kernels, spec, plan, case, num_splits, out=out)
            assert found.fault == (0, 0, 0, 0), f"fault {found.fault}"
            compare(case, found, want, write_lse)
            out.fill_(GUARD)
            assert bool((memory == GUARD).all()), "memory outside out changed"

        name = f"{case.name}, {num_splits} splits" if plan.kernel == "decode" else case.name
        return Trial(name if write_lse else f"{name}, no lse", run)

    made = tuple(attention_cases(spec, plan.kernel))
    if plan.checked:  # mostly the default's lines: faults are what it has of its own
        made = (made[1], *(row for row in made if row[0].name in ("exact", "more queries")))
    yield from (trial(case, num_splits, True) for case, num_splits in made)
    if not plan.checked:
        yield from (trial(case, num_splits, False) for case, num_splits in made[-2:])


def expected(spec: Spec, case: Case) -> tuple[Tensor, Tensor]:
    """The oracle's out and lse."""
    return oracle.paged_attention(
        case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
        shape_of(spec).attention, case.sm_scale,
    )  # fmt: skip


def call(
    kernels: Simulated,
    spec: Spec,
    plan: Plan,
    case: Case,
    num_splits: int,
    out: Tensor | None = None,
) -> Result:
    """One call as a host makes it; decode's counters are looked at after it."""
    launcher = cast(Any, kernels)  # takes what an Interpreter takes
    if plan.kernel == "decode":
        return run_decode(launcher, plan, case, spec.layout, num_splits=num_splits, out=out)
    return run_prefill(launcher, plan, case, spec.layout, out=out)


def compare(case: Case, found: Result, want: tuple[Tensor, Tensor], write_lse: bool) -> None:
    """Each sequence for itself, so that a long one is not lost among short ones."""
    tolerance = TOLERANCE[str(case.q.dtype).removeprefix("torch.")]
    bounds = case.cu_seqlens_q.tolist()
    for seq, (first, last) in enumerate(pairwise(bounds)):
        error = relative_error(found.out[first:last], want[0][first:last])
        assert error <= tolerance, f"sequence {seq}: error {error:.3g}"
    if write_lse:
        fault = lse_fault(found.lse, want[1])
        assert not fault, fault
    else:
        assert bool(found.lse.isnan().all()), "lse was written though not asked for"


def faulty(spec: Spec, plan: Plan) -> Iterator[Trial]:
    """Faults of the checked variants: which is reported, and that the rest goes on."""

    def trial(fault: faults.Fault) -> Trial:
        want = None if fault.same_as is None else expected(spec, fault.same_as)

        def run(kernels: Simulated) -> None:
            kernels.overrides = {}
            found = call(kernels, spec, plan, fault.case, 2)
            assert found.fault in fault.reports, f"{found.fault}, not {fault.reports}"
            if fault.finite:
                assert bool(found.out.isfinite().all()), "a bad block counts as masked"
            if want is not None:
                compare(fault.case, found, want, True)

        return Trial(fault.name, run)

    yield from (trial(fault) for fault in faults.faults(spec, plan.kernel))
