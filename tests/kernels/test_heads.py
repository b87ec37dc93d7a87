"""Heads and their lanes: groups of every size, dims that are no power of two, V narrower than K."""

from __future__ import annotations

import math

import pytest
import torch

from pagegen import cases
from pagegen.cases import TOLERANCE
from pagegen.verify import relative_error
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import (
    Call,
    check_oracle,
    check_rows,
    guard_is_intact,
    guarded,
    known_case,
    one_token,
    positions,
    reference,
    two_kernels,
)


@two_kernels
@pytest.mark.parametrize("heads", [(12, 12), (32, 8), (28, 4), (71, 1), (40, 8), (10, 2)], ids=str)
def test_every_query_head_finds_its_kv_head(
    kernels: Kernels, call: Call, heads: tuple[int, int]
) -> None:
    """V is the KV head's number: head h gives h // group + 1."""
    spec = make_spec(heads=heads)
    kv_head = torch.arange(1.0, heads[1] + 1).reshape(1, 1, -1, 1).expand(-1, 150, -1, -1)
    result = call(kernels, spec, known_case(spec, [150], kv_head))
    expected = 1 + torch.arange(heads[0]) // spec.group
    assert bool((result.out[0] == expected[:, None]).all())


@one_token
@pytest.mark.parametrize("batch", [1, 3])
def test_sixteen_heads_to_a_kv_head(kernels: Kernels, call: Call, batch: int) -> None:
    """All of a group larger than half a matrix product's tile are stored, split or not."""
    spec = make_spec(heads=(64, 4), dims=(128, 128), dtype="fp16")
    lengths = [150, 20, 70][:batch]
    case = cases.make_case(shape_of(spec), "group", lengths, [1] * batch, seed=2)
    check_oracle(spec, case, call(kernels, spec, case))


@two_kernels
@pytest.mark.parametrize("dim", [40, 72, 80, 96, 112, 120, 160, 192, 256])
def test_a_head_has_all_its_lanes_and_no_others(kernels: Kernels, call: Call, dim: int) -> None:
    """Head 1 is NaN, and everything that matters is in head 0's last lane."""
    spec = make_spec(heads=(2, 2), dims=(dim, dim))
    shape = shape_of(spec)
    case = cases.make_case(shape, "lanes", [50], [1], seed=1)
    for tensor in (case.q, case.k_cache, case.v_cache):
        tensor[..., 0, :-1] *= 0
        tensor[..., 1, :] = math.nan
    case.v_cache[..., 0, -1] += 1  # or their mean is all rounding
    memory, out = guarded(1, 2, dim, shape.dtype)
    result = call(kernels, spec, case, out=out)
    wanted, lse = reference(spec, case)
    assert relative_error(out[0, 0], wanted[0, 0]) <= TOLERANCE["float16"]
    torch.testing.assert_close(result.lse[0, 0].double(), lse[0, 0], atol=1e-5, rtol=1e-5)
    assert bool((out[0, 0, :-1] == 0).all()) and float(out[0, 0, -1]) != 0
    assert guard_is_intact(memory, out)


@two_kernels
def test_keys_may_be_wider_than_values(kernels: Kernels, call: Call) -> None:
    """Lanes past the value's width count in the score and never enter out."""
    spec = make_spec(heads=(16, 1), dims=(192, 128))
    case = known_case(spec, [90], positions(1, 90), q=1.0)
    case.k_cache[..., 128:] = torch.where(case.k_cache[..., 128:].isnan(), math.nan, 1e3)
    result = call(kernels, spec, case)
    assert result.out.shape == (1, 16, 128)
    check_rows(result, [44.5], [64e3 / math.sqrt(192) + math.log(90)])
