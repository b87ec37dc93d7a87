"""Tensor maps: what a driver refuses is refused, and a kernel finds them among its arguments."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from pagegen.errors import SimulationError
from pagegen.simulate import Simulator, TensorMap, simulate
from pagegen.simulate.launch import Value
from pagegen.simulate.tensor_map import encode

NOTHING = """
struct Params { int* to; };
extern "C" __global__ void nothing(const __grid_constant__ Params p) {}
"""
PLACES = """
struct Params {
  int* to;
  int first;
  TensorMap one;
  float second;
  TensorMap two;
  long long third;
};
extern "C" __global__ void places(const __grid_constant__ Params p) {
  tma_prefetch_map(p.one);
  tma_prefetch_map(p.two);
  if (threadIdx.x == 0) p.to[0] = p.first + static_cast<int>(p.second) + static_cast<int>(p.third);
}
"""
POOL = torch.zeros(8 * 1024, dtype=torch.bfloat16)
GOOD = TensorMap(POOL, (64, 16, 2, 4), (256, 128, 4096), (64, 8, 1, 2), 128)


@cache
def simulator() -> Simulator:
    return Simulator.of(NOTHING, "nothing", "nothing.cu")


def test_a_good_map_has_128_bytes_that_tell_it_from_others() -> None:
    maps = [GOOD, replace(GOOD, swizzle=64, box=(32, 8, 1, 2)), replace(GOOD, sizes=(64, 16, 2, 3))]
    encoded = [encode(simulator().code, given) for given in maps]
    assert {len(one) for one in encoded} == {128}
    assert len(set(encoded)) == len(maps)
    assert encode(simulator().code, GOOD) == encoded[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (replace(GOOD, tensor=POOL[1:]), "address 0x[0-9a-f]+ is not a multiple of 16"),
        (replace(GOOD, strides=(264, 128, 4096)), "stride 264 of dimension 1; a multiple of 16"),
        (replace(GOOD, strides=(256, 128, 1 << 40)), "stride 1099511627776 of dimension 3"),
        (replace(GOOD, box=(64, 257, 1, 1)), "a box of 257 elements in dimension 1; 1 to 256"),
        (replace(GOOD, box=(64, 0, 1, 1)), "a box of 0 elements in dimension 1; 1 to 256"),
        (replace(GOOD, swizzle=64), "128 bytes in dimension 0 is wider than its swizzle, 64"),
        (replace(GOOD, box=(32, 8, 1, 1)), "leaves a part of its swizzle of 128 bytes empty"),
        (replace(GOOD, box=(12, 8, 1, 1), swizzle=0), "24 bytes in dimension 0; a multiple of 16"),
        (replace(GOOD, sizes=(0, 16, 2, 4)), "size 0 of dimension 0; 1 to 2\\^32"),
        (replace(GOOD, sizes=((1 << 32) + 1, 16, 2, 4)), "size 4294967297 of dimension 0"),
        (replace(GOOD, swizzle=96), "a swizzle of 96 bytes"),
        (replace(GOOD, sizes=(1,) * 6, strides=(16,) * 5, box=(8,) * 6), "map of 6 sizes"),
        (replace(GOOD, strides=(256, 128)), "4 sizes, 2 strides and 4 sides"),
        (replace(GOOD, sizes=(), strides=(), box=()), "map of 0 sizes|rank 0"),
    ],
)
def test_what_a_driver_refuses_is_refused(given: TensorMap, said: str) -> None:
    with pytest.raises(SimulationError, match=said):
        encode(simulator().code, given)


def test_maps_lie_where_the_struct_has_them() -> None:
    to = torch.zeros(4, dtype=torch.int32)
    params = [
        ("to", "ptr"), ("first", "i32"), ("one", "map"), ("second", "f32"), ("two", "map"),
        ("third", "i64"),
    ]  # fmt: skip
    values: dict[str, Value] = {
        "to": to,
        "first": 3,
        "one": GOOD,
        "second": 40.0,
        "two": GOOD,
        "third": 500,
    }
    simulate(
        PLACES, symbol="places", file_name="places.cu", params=params, grid=1, num_threads=32,
        shared_bytes=0, values=values, seed=0,
    )  # fmt: skip
    assert to[0] == 543
