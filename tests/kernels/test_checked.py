"""The checked variants: the first fault is noted, the rest goes on, and nothing bad is read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagegen import cases
from pagegen.cases import Case
from pagegen.spec import Spec
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import Call, table_of

BAD_BLOCK, IS_NAN = 1, 2
Q, K, V = 0, 1, 2
CALLS = (Call("decode", 2, variant="checked"), Call("prefill", variant="checked"))
both = pytest.mark.parametrize("checked", CALLS, ids=str)


def sample(spec: Spec) -> Case:
    """Three sequences, the second the longest."""
    return cases.make_case(shape_of(spec), "checked", [20, 150, 33], [1, 1, 1], seed=21)


@both
def test_nothing_is_noted_when_nothing_is_wrong(kernels: Kernels, checked: Call) -> None:
    """The cases have NaN and absurd ids wherever they must not matter."""
    spec = make_spec()
    assert checked(kernels, spec, sample(spec)).fault == (0, 0, 0, 0)


@both
@pytest.mark.parametrize("value", [-1, 2**31 - 1, "num_blocks"])
@pytest.mark.parametrize("lookup", ["table", "csr"])
def test_a_bad_block_id_is_named(
    kernels: Kernels, checked: Call, lookup: str, value: int | str
) -> None:
    spec = make_spec(lookup="csr" if lookup == "csr" else "table")
    case = sample(spec)
    bad = case.k_cache.shape[0] if isinstance(value, str) else value
    clean = checked(kernels, spec, case)
    if isinstance(case.lookup, tuple):
        case.lookup[1][case.lookup[0][1] + 4] = bad
    else:
        case.lookup[1, 4] = bad
    result = checked(kernels, spec, case)
    assert result.fault == (BAD_BLOCK, 1, 4, bad)
    assert bool((result.out[[0, 2]] == clean.out[[0, 2]]).all()), "the others go on"
    assert bool(result.out.isfinite().all()), "a bad block counts as masked"


@both
def test_a_bad_id_past_the_last_block_is_no_fault(kernels: Kernels, checked: Call) -> None:
    spec = make_spec()
    case = sample(spec)
    assert int(table_of(case)[0, 2]) < 0, "the case has one"
    assert checked(kernels, spec, case).fault[0] == 0


@both
@pytest.mark.parametrize("operand", [K, V], ids=["k", "v"])
@pytest.mark.parametrize("token", [0, 77, 149])
def test_a_visible_nan_is_named(kernels: Kernels, checked: Call, operand: int, token: int) -> None:
    spec = make_spec()
    case = sample(spec)
    cache = case.k_cache if operand == K else case.v_cache
    block, offset = divmod(token, spec.block_size)
    cache[int(table_of(case)[1, block]), offset, 1, 3] = math.nan
    assert checked(kernels, spec, case).fault == (IS_NAN, 1, token, operand)


@both
def test_a_nan_in_q_is_named(kernels: Kernels, checked: Call) -> None:
    spec = make_spec()
    case = sample(spec)
    case.q[2, 3, 5] = math.nan
    assert checked(kernels, spec, case).fault == (IS_NAN, 2, 32, Q)


def test_a_nan_in_a_prompt_is_named_by_its_token(kernels: Kernels) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "prompt", [20, 50], [3, 40], seed=22)
    case.q[3 + 11, 0, 0] = math.nan
    fault = CALLS[1](kernels, spec, case).fault
    assert fault == (IS_NAN, 3 + 11, 10 + 11, Q)


@both
def test_only_one_fault_is_noted(kernels: Kernels, checked: Call) -> None:
    spec = make_spec()
    case = sample(spec)
    table = table_of(case).clone()
    table[:, 0] = torch.tensor([-5, -6, -7], dtype=torch.int32)
    fault = checked(kernels, spec, replace(case, lookup=table)).fault
    assert fault in {(BAD_BLOCK, seq, 0, value) for seq, value in enumerate((-5, -6, -7))}


@both
def test_blocks_before_the_window_are_not_checked(kernels: Kernels, checked: Call) -> None:
    spec = make_spec(window=20)
    case = sample(spec)
    table = table_of(case).clone()
    table[1, : (150 - 20) // spec.block_size] = -1
    assert checked(kernels, spec, replace(case, lookup=table)).fault[0] == 0
