"""Scores at their extremes, and what the scale and the soft cap make of them."""

from __future__ import annotations

import math

import pytest

from pagegen import cases
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import (
    PREFILL,
    Call,
    check_oracle,
    check_rows,
    known_case,
    one_token,
    poisoned,
    positions,
)


@one_token
def test_real_logits_of_minus_65536_are_no_mask(kernels: Kernels, call: Call) -> None:
    """A finite "minus infinity" would hide them."""
    spec = make_spec(dims=(64, 64))
    case = known_case(spec, [10, 5], positions(2, 10), q=-32.0, key=32.0, sm_scale=1.0)
    result = call(kernels, spec, poisoned(case, k=32.0, v=100.0))
    check_rows(result, [4.5, 2.0], [-65536 + math.log(10), -65536 + math.log(5)])


def test_masked_keys_get_nothing_beside_logits_of_minus_65536(kernels: Kernels) -> None:
    spec = make_spec(dims=(64, 64))
    case = known_case(spec, [10], positions(1, 10), q_lens=[10], q=-32.0, key=32.0, sm_scale=1.0)
    seen = range(1, 11)
    lse = [-65536 + math.log(n) for n in seen]
    check_rows(PREFILL(kernels, spec, case), [(n - 1) / 2 for n in seen], lse)


@one_token
def test_scores_beyond_half_precision(kernels: Kernels, call: Call) -> None:
    """q k is 524,288, which fp16 cannot hold: products and softmax are in fp32."""
    spec = make_spec(dims=(128, 128), dtype="fp16")
    case = known_case(spec, [33], positions(1, 33), q=64.0, key=64.0)
    check_rows(call(kernels, spec, case), [16.0], [524288 / math.sqrt(128) + math.log(33)])


@one_token
@pytest.mark.parametrize("soft_cap", [0.0, 5.0])
def test_a_scale_of_zero_gives_the_mean(kernels: Kernels, call: Call, soft_cap: float) -> None:
    """As any positive scale does that fp32 rounds to 0: masked scores are still masked."""
    spec = make_spec(soft_cap=soft_cap)
    case = known_case(spec, [70, 9], positions(2, 70), q=3.0, key=5.0, sm_scale=0.0)
    check_rows(call(kernels, spec, case), [34.5, 4.0], [math.log(70), math.log(9)])


@one_token
def test_the_soft_cap_reaches_every_path(kernels: Kernels, call: Call) -> None:
    outs = {}
    for soft_cap in (0.0, 5.0, 50.0):
        spec = make_spec(soft_cap=soft_cap)
        case = cases.make_case(shape_of(spec), "cap", [150, 20], [1, 1], seed=3, magnitude=2.5)
        result = call(kernels, spec, case)
        check_oracle(spec, case, result, f"cap {soft_cap}")
        outs[soft_cap] = result.out
    for one, other in ((0.0, 5.0), (50.0, 5.0)):
        assert float((outs[one] - outs[other]).abs().max()) > 0.1
