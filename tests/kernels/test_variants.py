"""The variants besides the default, whichever a backend has, against the oracle."""

from __future__ import annotations

from dataclasses import replace

from pagegen import cases
from pagegen.plan import Plan
from tests.kernels.calls import run_decode, run_prefill
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, plans_of, shape_of
from tests.kernels.tricks import PREFILL, Call, check_oracle


def others(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """All but the default; a checked one is always among them."""
    assert plans[0].variant == "default" and any(plan.checked for plan in plans[1:])
    return plans[1:]


def test_decode(kernels: Kernels) -> None:
    spec = make_spec(window=50)
    for plan in others(plans_of(kernels, spec, "decode")):
        for case in cases.decode_cases(shape_of(spec), seed=13)[:3]:
            result = run_decode(kernels, plan, case, spec.layout, num_splits=4)
            check_oracle(spec, case, result, plan.variant)


def test_prefill(kernels: Kernels) -> None:
    spec = make_spec(window=50)
    for plan in others(plans_of(kernels, spec, "prefill")):
        for case in cases.prefill_cases(shape_of(spec), seed=14)[:4]:
            result = run_prefill(kernels, plan, case, spec.layout)
            check_oracle(spec, case, result, plan.variant)


def test_the_soft_cap_reaches_them(kernels: Kernels) -> None:
    spec = make_spec(soft_cap=5.0)
    for call in (Call("decode", 3), PREFILL):
        for plan in others(plans_of(kernels, spec, call.kernel)):
            for small in cases.quick_cases(shape_of(spec), call.kernel, seed=16):
                case = replace(small, q=small.q * 8)  # scores past the cap
                result = replace(call, variant=plan.variant)(kernels, spec, case)
                check_oracle(spec, case, result, plan.variant)
