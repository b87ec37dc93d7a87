"""Decode in parts: their merge inside the kernel, and that of whole calls by merge_states."""

from __future__ import annotations

import math

import torch

from pagegen import cases
from tests.kernels.calls import run_decode
from tests.kernels.kernels import Kernels
from tests.kernels.ops import LaunchedOps
from tests.kernels.specs import make_spec, plan_of, shape_of
from tests.kernels.tricks import Call, check_oracle, check_rows, known_case, owners, positions


def test_without_lse_out_is_the_same(kernels: Kernels) -> None:
    """Parts have an lse of their own, whether or not the caller wants one."""
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "no lse", [150, 20], [1, 1], seed=15)
    plan = plan_of(kernels, spec, "decode")
    for splits in (1, 4):
        whole = run_decode(kernels, plan, case, spec.layout, num_splits=splits)
        silent = run_decode(kernels, plan, case, spec.layout, num_splits=splits, write_lse=False)
        check_oracle(spec, case, whole, f"{splits} splits")
        assert bool((silent.out == whole.out).all())
        assert bool(silent.lse.isnan().all()), "lse was written though not asked for"


def test_more_parts_than_are_merged_together(kernels: Kernels) -> None:
    spec = make_spec(heads=(2, 1))
    case = known_case(spec, [1300, 70], positions(2, 1300) % 64)
    values = torch.arange(1300.0) % 64
    result = Call("decode", 20)(kernels, spec, case)
    means = [float(values[:length].mean()) for length in (1300, 70)]
    check_rows(result, means, [math.log(1300), math.log(70)], tolerance=1e-3)


def test_a_prefix_and_a_suffix_merge_by_natural_logarithms(kernels: Kernels) -> None:
    """1,024 keys of value 0 and 64 of value 1; the two states are rows of one call's results."""
    spec = make_spec()
    parts = Call("decode", 4)(kernels, spec, known_case(spec, [1024, 64], owners(2, 1024) - 1))
    check_rows(parts, [0.0, 1.0], [math.log(1024), math.log(64)])
    out, lse = torch.full_like(parts.out[:1], math.nan), torch.full_like(parts.lse[:1], math.nan)
    ops = LaunchedOps(kernels, spec, "default")
    ops.merge_states(out, lse, parts.out[:1], parts.lse[:1], parts.out[1:], parts.lse[1:])
    assert float((out.double() * 1088 / 64 - 1).abs().max()) < 1e-3
    assert float((lse - math.log(1088)).abs().max()) < 1e-5
