"""A plan: complete, distinct for every difference, and refused when its numbers contradict."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from pagegen.dtypes import DType, dtype
from pagegen.errors import PlanError
from pagegen.lower import lower
from pagegen.plan import Constant, Param, Plan, check
from tests.specimens import specimen


def any_plan() -> Plan:
    return lower(specimen(kernels=("decode",), backends=("cuda",)))[0]


def other(value: Any) -> Any:
    """A different value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, DType):
        return dtype("fp16" if value.name != "fp16" else "fp32")
    if isinstance(value, tuple):
        return value[:-1] if value else ("sm_80",)
    return value + "x"


@pytest.mark.parametrize("field", [field.name for field in fields(Plan)])
def test_plans_that_differ_in_one_field_have_different_symbols(field: str) -> None:
    plan = any_plan()
    changed = replace(plan, **{field: other(getattr(plan, field))})
    assert changed.digest != plan.digest
    assert changed.symbol != plan.symbol


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"constants": (Constant("A", 1, ""), Constant("A", 2, ""))}, "names used twice: A"),
        ({"constants": (Constant("lower", 1, ""),)}, "not an UPPER_CASE number"),
        ({"constants": (Constant("FLAG", True, ""),)}, "not an UPPER_CASE number"),
        ({"params": (Param("q", "ptr", "", "bf16"), Param("q", "i32", ""))}, "names used twice: q"),
        ({"num_warps": 0}, "num_warps 0"),
        ({"targets": ()}, "no target can run this plan"),
        ({"targets": ("gfx942",)}, "gfx942 has no CUDA backend"),
        ({"targets": ("sm_86",), "dynamic_smem_bytes": 101_377}, "at most 101376"),
    ],
)
def test_contradictions_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check(replace(any_plan(), **change))


def test_a_plan_has_no_none_and_no_auto() -> None:
    for plan in lower(specimen(window=9, soft_cap=5.0)):
        for field in fields(plan):
            assert getattr(plan, field.name) is not None
        for row in plan.constants:
            assert row.value not in ("auto", "None", "")
