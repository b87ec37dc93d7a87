"""The checked variants of decode and prefill in plain PyTorch: the lowest fault is returned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pagegen import cases
from pagegen.cases import Case
from pagegen.spec import Spec
from tests.kernels.calls import Result
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import table_of

Run = Callable[..., Result]
BAD_BLOCK, IS_NAN = 1, 2
Q, K, V = 0, 1, 2
kernels = pytest.mark.parametrize("kernel", ["decode", "prefill"])


def sample(spec: Spec) -> Case:
    """Three sequences, the second the longest; NaN and absurd ids wherever they do not matter."""
    return cases.make_case(shape_of(spec), "checked", [20, 150, 33], [1, 1, 1], seed=21)


@kernels
@pytest.mark.parametrize("value", [-1, 2**31 - 1, "num_blocks"])
@pytest.mark.parametrize("lookup", ["table", "csr"])
def test_a_bad_block_id_is_named(run: Run, kernel: str, lookup: str, value: int | str) -> None:
    spec = make_spec(lookup="csr" if lookup == "csr" else "table")
    case = sample(spec)
    bad = case.k_cache.shape[0] if isinstance(value, str) else value
    clean = run(spec, kernel, case, variant="checked")
    assert clean.fault[0] == 0
    if isinstance(case.lookup, tuple):
        case.lookup[1][case.lookup[0][1] + 4] = bad
    else:
        case.lookup[1, 4] = bad
    result = run(spec, kernel, case, variant="checked")
    assert result.fault == (BAD_BLOCK, 1, 4, bad)
    assert torch.equal(result.out[[0, 2]], clean.out[[0, 2]]), "the others go on"
    assert bool(result.out.isfinite().all()), "a bad block counts as masked"


@kernels
@pytest.mark.parametrize("operand", [K, V], ids=["k", "v"])
@pytest.mark.parametrize("token", [0, 77, 149])
def test_a_visible_nan_is_named(run: Run, kernel: str, operand: int, token: int) -> None:
    spec = make_spec()
    case = sample(spec)
    cache = case.k_cache if operand == K else case.v_cache
    block, offset = divmod(token, spec.block_size)
    cache[int(table_of(case)[1, block]), offset, 1, 3] = math.nan
    assert run(spec, kernel, case, variant="checked").fault == (IS_NAN, 1, token, operand)


@kernels
def test_a_nan_in_q_is_named(run: Run, kernel: str) -> None:
    spec = make_spec()
    case = sample(spec)
    case.q[2, 3, 5] = math.nan
    assert run(spec, kernel, case, variant="checked").fault == (IS_NAN, 2, 32, Q)


def test_a_nan_in_a_prompt_is_named_by_its_token(run: Run) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "prompt", [20, 50], [3, 40], seed=22)
    case.q[3 + 11, 0, 0] = math.nan
    fault = run(spec, "prefill", case, variant="checked").fault
    assert fault == (IS_NAN, 3 + 11, 10 + 11, Q)


@kernels
def test_the_lowest_of_many_is_returned(run: Run, kernel: str) -> None:
    spec = make_spec()
    case = sample(spec)
    table = table_of(case).clone()
    table[1:, 1] = -7
    table[1, 3] = -8
    case.q[0] = math.nan
    fault = run(spec, kernel, replace(case, lookup=table), variant="checked").fault
    assert fault == (BAD_BLOCK, 1, 1, -7)


@kernels
def test_blocks_before_the_window_are_not_checked(run: Run, kernel: str) -> None:
    spec = make_spec(window=20)
    case = sample(spec)
    table = table_of(case).clone()
    table[1, : (150 - 20) // spec.block_size] = -1
    result = run(spec, kernel, replace(case, lookup=table), variant="checked")
    assert result.fault[0] == 0
