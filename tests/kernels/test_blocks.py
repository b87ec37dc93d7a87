"""Block tables and pools: any block size, any place, and nothing read that no token needs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagegen import cases
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import (
    Call,
    check_rows,
    known_case,
    one_token,
    poisoned,
    positions,
    same,
    table_of,
    two_kernels,
    with_table,
)


@two_kernels
@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 256, 512, 1024])
def test_tables_exactly_as_wide_as_needed(kernels: Kernels, call: Call, block_size: int) -> None:
    """The last row of a larger tensor, whose next words are no block ids."""
    length = 65 if block_size < 64 else 3 * block_size + 1
    spec = make_spec(heads=(2, 1), block_size=block_size)
    values = positions(1, length) % 61
    case = known_case(spec, [length], values)
    width = -(-length // block_size)
    larger = torch.full((3, width + 64), 2**31 - 1, dtype=torch.int32)
    larger.view(-1)[64 : 64 + width] = table_of(case)[0, :width]
    table = larger.view(-1)[64 : 64 + width].unsqueeze(0)
    result = call(kernels, spec, replace(case, lookup=table))
    check_rows(result, [float(values.mean())], [math.log(length)], tolerance=1e-3)


@two_kernels
def test_where_blocks_lie_changes_no_bit(kernels: Kernels, call: Call) -> None:
    """In order, reversed, shuffled, and with blocks of NaN between them."""
    spec = make_spec(block_size=8)
    case = cases.make_case(shape_of(spec), "places", [150, 40], [1, 1], seed=3)
    count = case.k_cache.shape[0]
    results = []
    for places in (
        torch.arange(count),
        torch.arange(count).flip(0),
        torch.randperm(count, generator=torch.Generator().manual_seed(4)),
        torch.arange(count) * 3 + 1,
    ):
        results.append(call(kernels, spec, moved(case, places)))
    assert all(same(result, results[0]) for result in results)


def moved(case: cases.Case, places: Tensor) -> cases.Case:
    """The case with block i at places[i]."""
    caches = []
    for cache in (case.k_cache, case.v_cache):
        larger = torch.full((int(places.max()) + 1, *cache.shape[1:]), math.nan, dtype=cache.dtype)
        larger[places] = cache
        caches.append(larger)
    table = table_of(case)
    known = (table >= 0) & (table < len(places))
    table = torch.where(known, places[table.clamp(0, len(places) - 1).long()].int(), table)
    return replace(with_table(case, table), k_cache=caches[0], v_cache=caches[1])


@one_token
def test_entries_past_the_last_block_are_not_block_ids(kernels: Kernels, call: Call) -> None:
    spec = make_spec()
    case = known_case(spec, [5], positions(1, 5))
    case = moved(case, torch.tensor([0, 7, 2, 3]).roll(1 - int(table_of(case)[0, 0])))
    assert int(table_of(case)[0, 0]) == 7
    clean = call(kernels, spec, with_table(case, torch.tensor([[7, 0, 0, 0]])))
    check_rows(clean, [2.0], [math.log(5)])
    odd = torch.tensor([[7, -1, 2**31 - 1, 999999]])
    assert same(call(kernels, spec, with_table(case, odd)), clean)


@two_kernels
def test_block_ids_beyond_sixteen_bits(kernels: Kernels, call: Call) -> None:
    spec = make_spec(heads=(1, 1), block_size=1)
    case = known_case(spec, [3], positions(1, 3))
    ids = torch.tensor([65535, 65536, 65537])
    caches = []
    for cache in (case.k_cache, case.v_cache):
        larger = torch.full((65538, *cache.shape[1:]), math.nan, dtype=cache.dtype)
        larger[ids] = cache[table_of(case)[0, :3].long()]
        caches.append(larger)
    case = replace(with_table(case, ids[None]), k_cache=caches[0], v_cache=caches[1])
    check_rows(call(kernels, spec, case), [1.0], [math.log(3)])


@one_token
def test_a_reserved_block_is_never_read(kernels: Kernels, call: Call) -> None:
    """Block 0 stands where no token is: before a window, and in the row of an empty sequence."""
    spec = make_spec(window=20)
    case = cases.make_case(shape_of(spec), "reserved", [100, 0, 50], [1] * 3, seed=6)
    table = table_of(case).clone()
    table[0, : (100 - 20) // spec.block_size] = 0
    table[1] = 0
    results = [
        call(kernels, spec, replace(poisoned(case, k=k, v=v), lookup=table))
        for k, v in ((0.0, 0.0), (math.nan, math.nan))
    ]
    assert same(*results) and bool(results[0].out.isfinite().all())


@two_kernels
@pytest.mark.parametrize(("block_size", "num_kv_heads"), [(32, 2), (16, 16)], ids=["32x2", "16x16"])
def test_layouts_differ_in_nothing_but_places(
    kernels: Kernels, call: Call, block_size: int, num_kv_heads: int
) -> None:
    """One cache in both layouts; where the two axes are as long, shapes cannot tell them apart."""
    heads = (num_kv_heads, num_kv_heads)
    nhd = make_spec(heads=heads, dims=(64, 64), block_size=block_size)
    hnd = replace(nhd, layout="HND")
    case = cases.make_case(shape_of(nhd), "layouts", [70, 9], [1, 1], seed=10)
    swapped = replace(
        case,
        k_cache=case.k_cache.transpose(1, 2).contiguous(),
        v_cache=case.v_cache.transpose(1, 2).contiguous(),
    )
    assert same(call(kernels, hnd, swapped), call(kernels, nhd, case))
