"""Lowering: every kernel for every backend and target, the default first, and a checked one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pagegen.archs import arch
from pagegen.emit import emit
from pagegen.lower import lower
from pagegen.plan import BACKENDS, KERNELS
from pagegen.spec import Spec
from tests.specimens import specimen

CHANGES = {
    "name": "other",
    "archs": ("sm_80",),
    "num_q_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 64,
    "head_dim_v": 64,
    "block_size": 16,
    "layout": "HND",
    "lookup": "csr",
    "causal": False,
    "window": 8,
    "soft_cap": 5.0,
    "digest": "1" * 64,
}
DTYPES = {"dtype_query", "dtype_kv", "dtype_out"}  # change together: CUDA takes no mixture
NOT_MEANING = {"kernels", "backends", "file_name"}


def test_every_kernel_backend_and_target_has_a_default_and_a_checked_plan() -> None:
    spec = specimen(archs=("sm_80", "sm_86", "sm_90a", "sm_120a", "gfx942"))
    plans = lower(spec)
    for kernel in KERNELS:
        for backend in BACKENDS:
            mine = [p for p in plans if (p.kernel, p.backend) == (kernel, backend)]
            assert mine and not mine[0].checked
            for target in spec.archs:
                if backend == "torch" or (backend == "cuda" and arch(target).vendor != "cuda"):
                    continue
                on_target = [p for p in mine if target in p.targets]
                assert not on_target[0].checked
                assert any(p.checked for p in on_target)


def test_variants_are_unique_within_a_kernel_and_backend() -> None:
    plans = lower(specimen(archs=("sm_80", "sm_86", "sm_90a")))
    keys = [(p.kernel, p.backend, p.variant) for p in plans]
    assert len(keys) == len(set(keys))


def sources(spec: Spec) -> dict[str, str]:
    """Symbol -> emitted text of every compiled kernel."""
    return {plan.symbol: emit(plan, "specimen.yaml").text for plan in lower(spec)}


def test_kernels_that_differ_anywhere_never_share_a_symbol() -> None:
    """For every field of a spec: what changes with it in the text changes the symbol too."""
    untested = {field.name for field in fields(Spec)} - set(CHANGES) - NOT_MEANING - DTYPES
    assert not untested, "add the new field to CHANGES"
    compiled = ("cuda", "triton")
    base = sources(specimen(backends=compiled))
    changes: list[dict[str, Any]] = [{field: value} for field, value in CHANGES.items()]
    for change in [*changes, dict.fromkeys(DTYPES, "fp16")]:
        changed = sources(specimen(backends=compiled, **change))
        assert changed.keys() != base.keys(), change
        for symbol in changed.keys() & base.keys():
            assert changed[symbol] == base[symbol], (change, symbol)


@pytest.mark.parametrize("group", [1, 3, 4, 5, 6, 7, 8, 12, 16, 24, 71])
@pytest.mark.parametrize("head_dim", [32, 40, 80, 96, 112, 120, 128, 192, 256])
def test_every_group_and_head_dim_has_plans(group: int, head_dim: int) -> None:
    spec = specimen(num_q_heads=2 * group, head_dim=head_dim, head_dim_v=head_dim)
    assert lower(spec)


def test_lowering_is_deterministic() -> None:
    assert lower(specimen()) == lower(specimen())
