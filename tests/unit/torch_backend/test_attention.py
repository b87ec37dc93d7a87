"""decode and prefill in plain PyTorch: by the oracle, and where the answer is a plain number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagegen import cases
from pagegen.cases import TOLERANCE, Case
from pagegen.oracle import paged_attention
from pagegen.spec import Spec
from pagegen.verify import lse_fault, relative_error
from tests.kernels.calls import Result
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import check_rows, known_case, poisoned, positions, same
from tests.rendering import load_kernel

Run = Callable[..., Result]
VARIANTS = ("default", "checked")
kernels = pytest.mark.parametrize("kernel", ["decode", "prefill"])


def check(spec: Spec, case: Case, result: Result) -> None:
    """Compare with the oracle, as verify does."""
    out, lse = paged_attention(
        case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
        shape_of(spec).attention, case.sm_scale,
    )  # fmt: skip
    tolerance = TOLERANCE[str(case.q.dtype).removeprefix("torch.")]
    assert relative_error(result.out, out) <= tolerance, case.name
    assert not lse_fault(result.lse, lse), case.name
    assert result.fault[0] == 0, case.name


SPECS = {
    "group1-fp16": make_spec(heads=(2, 2), dtype="fp16", block_size=1),
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
    "group71-block256": make_spec(heads=(71, 1), dims=(64, 64), block_size=256),
    "full": make_spec(heads=(4, 1), dims=(120, 120), causal=False, block_size=32),
    "window-csr-bf16": make_spec(dtype="bf16", window=9, lookup="csr", block_size=16),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_shared_cases(run: Run, spec: Spec) -> None:
    """Every mask, layout, lookup, group and head dim, by the oracle."""
    for variant in VARIANTS:
        for case in cases.decode_cases(shape_of(spec), seed=31):
            check(spec, case, run(spec, "decode", case, variant=variant))
        for case in cases.prefill_cases(shape_of(spec), seed=32):
            check(spec, case, run(spec, "prefill", case, variant=variant))


@kernels
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_what_is_not_visible_does_not_matter(run: Run, kernel: str, dtype: str) -> None:
    spec = make_spec(dtype=dtype)
    case = cases.make_case(shape_of(spec), "tails", [1, 3, 17, 31], [1] * 4, seed=1)
    zeros = run(spec, kernel, poisoned(case, k=0.0, v=0.0))
    for number in (math.nan, math.inf, -math.inf):
        assert same(run(spec, kernel, poisoned(case, k=number, v=number)), zeros)


@kernels
@pytest.mark.parametrize("causal", [True, False])
def test_the_length_masks_without_causality(run: Run, kernel: str, causal: bool) -> None:
    lens = [1, 63, 65, 257]
    spec = make_spec(causal=causal)
    case = poisoned(known_case(spec, lens, positions(4, 257)), k=0.0, v=1000.0)
    check_rows(run(spec, kernel, case), [(n - 1) / 2 for n in lens], [math.log(n) for n in lens])


def test_more_queries_than_keys(run: Run) -> None:
    spec = make_spec()
    case = known_case(spec, [2, 4], positions(2, 4) + 1, q_lens=[5, 1])
    out, lse = [0.0, 0.0, 0.0, 1.0, 1.5, 2.5], [-math.inf] * 3
    check_rows(run(spec, "prefill", case), out, [*lse, 0.0, math.log(2), math.log(4)])


@kernels
def test_an_empty_sequence(run: Run, kernel: str) -> None:  # its q may be NaN
    spec = make_spec()
    case = known_case(spec, [0, 1, 17, 0], positions(4, 17))
    case.q[[0, 3]] = math.nan
    rows = [0.0, 0.0, 8.0, 0.0], [-math.inf, 0.0, math.log(17), -math.inf]
    for variant in VARIANTS[: 1 + (kernel == "prefill")]:
        check_rows(run(spec, kernel, case, variant=variant), *rows)


def test_two_states_make_one(run: Run, tmp_path: Path) -> None:
    spec = make_spec(dtype="fp32")
    parts = [
        run(spec, "decode", known_case(spec, [n], torch.full((1, n, 1, 1), value)))
        for n, value in ((1024, 0.0), (64, 1.0))
    ]
    whole = replace(spec, kernels=("merge_states",), backends=("torch",))
    merge = load_kernel(whole, "merge_states", "torch", tmp_path).merge_states
    into = Result(torch.empty_like(parts[0].out), torch.empty_like(parts[0].lse))
    merge(into.out, into.lse, *(x for part in parts for x in (part.out, part.lse)))
    check_rows(into, [64 / 1088], [math.log(1088)])


@kernels
def test_huge_negative_scores_are_no_masks(run: Run, kernel: str) -> None:
    spec = make_spec(dims=(64, 64), window=5)
    case = known_case(spec, [5, 10], positions(2, 10), q=-32.0, key=32.0, sm_scale=1.0)
    result = run(spec, kernel, case)
    check_rows(result, [2.0, 7.0], [-65536.0 + math.log(5)] * 2)


@kernels
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_huge_scores_do_not_overflow(run: Run, kernel: str, dtype: str) -> None:
    spec = make_spec(dims=(128, 128), dtype=dtype)
    case = known_case(spec, [33], positions(1, 33), q=64.0, key=64.0)
    check_rows(run(spec, kernel, case), [16.0], [46340.95 + math.log(33)])


def test_a_window_row_by_row(run: Run) -> None:
    spec = make_spec(window=8, block_size=4)
    case = known_case(spec, [200], positions(1, 200), q_lens=[130])
    sees = [range(max(0, p - 7), p + 1) for p in range(70, 200)]
    means = [sum(keys) / len(keys) for keys in sees]
    check_rows(run(spec, "prefill", case), means, [math.log(len(keys)) for keys in sees])


@kernels
def test_the_soft_cap_is_applied(run: Run, kernel: str) -> None:
    shape = shape_of(make_spec())
    case = replace(cases.make_case(shape, "cap", [40, 9], [1, 1], seed=3), sm_scale=1.0)
    outs = []
    for cap in (0.0, 5.0, 50.0):
        spec = make_spec(soft_cap=cap)
        outs.append(run(spec, kernel, case))
        check(spec, case, outs[-1])
    assert relative_error(outs[1].out, outs[0].out.double()) > 0.05


@pytest.mark.parametrize("prefix", [0, 15, 16, 17])
def test_causality_is_aligned_to_the_end(run: Run, prefix: int) -> None:
    spec = make_spec()
    for q_len in (1, 2, 17):
        case = known_case(spec, [prefix + q_len], positions(1, prefix + q_len), q_lens=[q_len])
        sees = [prefix + row + 1 for row in range(q_len)]
        result = run(spec, "prefill", case)
        check_rows(result, [(n - 1) / 2 for n in sees], [math.log(n) for n in sees])
