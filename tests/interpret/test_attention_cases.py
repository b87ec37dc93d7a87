"""The shared adversarial cases against the oracle, for specs that differ in everything."""

from __future__ import annotations

import pytest

from pagegen import cases
from pagegen.cases import TOLERANCE
from pagegen.lower import lower
from pagegen.oracle import paged_attention
from pagegen.spec import Spec
from pagegen.verify import lse_fault, relative_error
from tests.interpret.harness import Result, make_spec, plan_of, run_decode, run_prefill, shape_of
from tests.interpret.worker import Interpreter

SPECS = {
    "group1-fp32": make_spec(heads=(1, 1), dtype="fp32", block_size=1),
    "group3-hnd": make_spec(heads=(6, 2), dims=(40, 40), block_size=24, layout="HND"),
    "group4-bf16": make_spec(heads=(8, 2), dims=(128, 128), dtype="bf16"),
    "group5": make_spec(heads=(5, 1), dims=(80, 80), block_size=96),
    "group6-cap": make_spec(heads=(6, 1), dims=(112, 112), soft_cap=5.0, layout="HND"),
    "group7-window": make_spec(heads=(7, 1), dims=(96, 96), block_size=8, window=40),
    "group12-csr": make_spec(heads=(24, 2), lookup="csr", block_size=4),
    "group16-192-128": make_spec(heads=(16, 1), dims=(192, 128), block_size=64),
    "group24-window-cap": make_spec(
        heads=(24, 1), dims=(256, 256), block_size=2, layout="HND", window=100, soft_cap=30.0
    ),
    "group71": make_spec(heads=(71, 1), dims=(64, 64)),
    "full": make_spec(heads=(4, 1), dims=(120, 120), causal=False, block_size=32),
    "window-csr": make_spec(window=9, lookup="csr", block_size=16),
}
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())


def check(spec: Spec, case: cases.Case, result: Result, what: str) -> None:
    """Compare with the oracle, as verify does."""
    out, lse = paged_attention(
        case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
        shape_of(spec).attention, case.sm_scale,
    )  # fmt: skip
    tolerance = TOLERANCE[str(case.q.dtype).removeprefix("torch.")]
    assert relative_error(result.out, out) <= tolerance, f"{case.name}, {what}"
    assert not lse_fault(result.lse, lse), f"{case.name}, {what}"


# For each decode case: whole, into few parts, or into more than short sequences have.
SPLITS = (3, 8, 5, 1, 1)


@specs
def test_decode(interpreter: Interpreter, spec: Spec) -> None:
    plan = plan_of(spec, "decode")
    for case, splits in zip(cases.decode_cases(shape_of(spec), seed=11), SPLITS, strict=True):
        result = run_decode(interpreter, plan, case, spec.layout, num_splits=splits)
        check(spec, case, result, f"{splits} splits")


@specs
def test_prefill(interpreter: Interpreter, spec: Spec) -> None:
    plan = plan_of(spec, "prefill")
    for case in cases.prefill_cases(shape_of(spec), seed=12):
        if spec.group >= 12 and case.name.startswith(("prompt", "chunks over prefixes, packed")):
            continue  # many rows, and nothing that smaller groups do not show
        check(spec, case, run_prefill(interpreter, plan, case, spec.layout), plan.variant)


def variants(kernel: str) -> list[str]:
    """Every variant besides the default."""
    rows = lower(make_spec())
    return [p.variant for p in rows if p.kernel == kernel and p.backend == "triton"][1:]


@pytest.mark.parametrize("variant", variants("decode"))
def test_other_variants_of_decode(interpreter: Interpreter, variant: str) -> None:
    spec = make_spec(window=50)
    plan = plan_of(spec, "decode", variant)
    for case in cases.decode_cases(shape_of(spec), seed=13)[:3]:
        result = run_decode(interpreter, plan, case, spec.layout, num_splits=4)
        check(spec, case, result, variant)
        assert result.fault == (0, 0, 0, 0)


@pytest.mark.parametrize("variant", variants("prefill"))
def test_other_variants_of_prefill(interpreter: Interpreter, variant: str) -> None:
    spec = make_spec(window=50)
    plan = plan_of(spec, "prefill", variant)
    for case in cases.prefill_cases(shape_of(spec), seed=14)[:4]:
        result = run_prefill(interpreter, plan, case, spec.layout)
        check(spec, case, result, variant)
        assert result.fault == (0, 0, 0, 0)


def test_decode_without_lse(interpreter: Interpreter) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "no lse", [150, 20], [1, 1], seed=15)
    plan = plan_of(spec, "decode")
    for splits in (1, 4):
        whole = run_decode(interpreter, plan, case, spec.layout, num_splits=splits)
        silent = run_decode(
            interpreter, plan, case, spec.layout, num_splits=splits, write_lse=False
        )
        assert bool((silent.out == whole.out).all())
        assert bool(silent.lse.isnan().all()), "lse was written though not asked for"
