"""Tensors on another device and back: still the views they were, and nothing else changed."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.mirror import GUARD_BYTES, Mirror
from tests.kernels.on_device import arch_of

CPU = torch.device("cpu")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_view_keeps_its_place_and_its_numbers(dtype: torch.dtype) -> None:
    pool = torch.arange(6 * 5 * 8).reshape(6, 5, 8).to(dtype)
    for tensor in (pool, pool[1:, 2:4, 3:], pool.transpose(0, 2), pool[0, 0, :1].expand(7)):
        seen = Mirror(CPU).view(tensor)
        assert torch.equal(seen, tensor)
        assert (seen.dtype, seen.shape, seen.stride()) == (dtype, tensor.shape, tensor.stride())
        same_place = tensor.storage_offset() * tensor.element_size() + GUARD_BYTES
        assert seen.storage_offset() * seen.element_size() == same_place
        assert seen.data_ptr() != tensor.data_ptr()
        assert seen.data_ptr() % 64 == tensor.data_ptr() % 64


def test_views_of_one_memory_are_so_there_too_and_come_back() -> None:
    pool = torch.zeros(4, 2, 8, dtype=torch.float16)
    k, v = pool[:, 0], pool[:, 1]
    bits = pool.view(torch.int32)
    other = torch.ones(3)
    mirror = Mirror(CPU)
    there_k, there_v, there_bits = mirror.view(k), mirror.view(v), mirror.view(bits)
    mirror.view(other)
    there_k[2] = 3.0
    there_v.copy_(there_k + 1)
    assert torch.equal(mirror.view(pool)[2, 0], torch.full((8,), 3.0, dtype=torch.float16))
    assert bool(there_bits[2].all()), "another dtype's view of the same bytes"
    assert not bool(pool.any()), "nothing comes back before it is asked for"
    mirror.bring_back()
    want = torch.zeros(4, 2, 8, dtype=torch.float16)
    want[2, 0], want[:, 1], want[2, 1] = 3.0, 1.0, 4.0
    assert torch.equal(pool, want) and torch.equal(other, torch.ones(3))


def test_what_is_no_number_comes_back_bit_by_bit() -> None:
    tensor = torch.tensor([math.nan, -0.0, math.inf, 1e-45])
    before = tensor.view(torch.int32).clone()
    mirror = Mirror(CPU)
    mirror.view(tensor)
    mirror.bring_back()
    assert torch.equal(tensor.view(torch.int32), before)


def test_tensors_without_elements_may_be_many() -> None:
    mirror = Mirror(CPU)
    for tensor in (torch.zeros(0), torch.zeros(2, 0, dtype=torch.int32), torch.ones(4)[4:]):
        assert mirror.view(tensor).shape == tensor.shape
    mirror.bring_back()


@pytest.mark.parametrize("step", [-1, 1])
def test_a_write_beside_an_argument_is_noticed(step: int) -> None:
    tensor = torch.zeros(16)
    mirror = Mirror(CPU)
    seen = mirror.view(tensor)
    beside = seen.as_strided((16,), (1,), seen.storage_offset() + step)
    assert bool(beside.isnan().any()), "what is read there is NaN"
    beside.fill_(1.0)
    with pytest.raises(AssertionError, match="beside an argument"):
        mirror.bring_back()


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a"), ((7, 5), "")],
)
def test_plans_are_made_for_the_device_at_hand(capability: tuple[int, int], target: str) -> None:
    assert arch_of(capability) == target
