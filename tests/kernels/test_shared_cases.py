"""The shared adversarial cases against the oracle, for specs that differ in everything."""

from __future__ import annotations

import pytest

from pagegen import cases
from pagegen.spec import Spec
from tests.kernels.calls import run_decode, run_prefill
from tests.kernels.kernels import Kernels
from tests.kernels.specs import FP32_ONLY, make_spec, plan_of, shape_of
from tests.kernels.tricks import check_oracle

SPECS = {
    "group1": make_spec(heads=(1, 1), block_size=1),
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
specs = pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=name, marks=FP32_ONLY if name.endswith("fp32") else ())
        for name, spec in SPECS.items()
    ],
)

# For each decode case: whole, into few parts, or into more than short sequences have.
SPLITS = (3, 8, 5, 1, 1)


@specs
def test_decode(kernels: Kernels, spec: Spec) -> None:
    plan = plan_of(kernels, spec, "decode")
    for case, splits in zip(cases.decode_cases(shape_of(spec), seed=11), SPLITS, strict=True):
        result = run_decode(kernels, plan, case, spec.layout, num_splits=splits)
        check_oracle(spec, case, result, f"{splits} splits")


@specs
def test_prefill(kernels: Kernels, spec: Spec) -> None:
    plan = plan_of(kernels, spec, "prefill")
    for case in cases.prefill_cases(shape_of(spec), seed=12):
        if spec.group >= 12 and case.name.startswith(("prompt", "chunks over prefixes, packed")):
            continue  # many rows, and nothing that smaller groups do not show
        check_oracle(spec, case, run_prefill(kernels, plan, case, spec.layout))
