"""Decode and prefill where memory is laid out in every legal way, and poisoned everywhere else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagegen import cases
from pagegen.cases import ABSURD_IDS
from tests.interpret.harness import Result, make_spec, shape_of
from tests.interpret.tricks import (
    ONE_TOKEN_CALLS,
    Call,
    check_rows,
    known_case,
    poisoned,
    positions,
    same,
    table_of,
    with_table,
)
from tests.interpret.worker import Interpreter

one_token = pytest.mark.parametrize("call", ONE_TOKEN_CALLS, ids=str)
two_kernels = pytest.mark.parametrize("call", ONE_TOKEN_CALLS[1::2], ids=str)
GUARD = -7.0


def guarded(tokens: int, heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(memory, out): out is a transposed view with a guard band round every row."""
    memory = torch.full((heads + 2, tokens + 2, dim + 8), GUARD, dtype=dtype)
    return memory, memory[1:-1, 1:-1, :dim].transpose(0, 1)


def guard_is_intact(memory: Tensor, out: Tensor) -> bool:
    """Whether nothing but out was written."""
    rest = memory.clone()
    rest[1:-1, 1:-1, : out.shape[2]] = GUARD
    return bool((rest == GUARD).all())


@two_kernels
@pytest.mark.parametrize("dim", [40, 72, 80, 96, 112, 120, 160, 192, 256])
def test_a_head_has_all_its_lanes_and_no_others(
    interpreter: Interpreter, call: Call, dim: int
) -> None:
    """Head 1 is NaN, and everything that matters is in head 0's last lane."""
    spec = make_spec(heads=(2, 2), dims=(dim, dim))
    shape = shape_of(spec)
    case = cases.make_case(shape, "lanes", [50], [1], seed=1)
    for tensor in (case.q, case.k_cache, case.v_cache):
        tensor[..., 0, :-1] *= 0
        tensor[..., 1, :] = math.nan
    memory, out = guarded(1, 2, dim, shape.dtype)
    result = call(interpreter, spec, case, out=out)
    blocks = table_of(case)[0, :4].long()
    k, v = (
        cache[blocks][..., 0, -1].flatten()[:50].float() for cache in (case.k_cache, case.v_cache)
    )
    scores = case.q[0, 0, -1].float() * k * dim**-0.5
    torch.testing.assert_close(result.lse[0, 0], scores.logsumexp(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out[0, 0, -1].float(), scores.softmax(0) @ v, atol=2e-3, rtol=2e-3)
    assert bool((out[0, 0, :-1] == 0).all())
    assert guard_is_intact(memory, out)


@two_kernels
def test_keys_may_be_wider_than_values(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(heads=(16, 1), dims=(192, 128))
    case = known_case(spec, [90], positions(1, 90), q=1.0)
    case.k_cache[..., 128:] = torch.where(case.k_cache[..., 128:].isnan(), math.nan, 1e3)
    result = call(interpreter, spec, case)
    assert result.out.shape == (1, 16, 128)
    check_rows(result, [44.5], [64e3 / math.sqrt(192) + math.log(90)])


@one_token
@pytest.mark.parametrize("batch", [1, 3])
def test_sixteen_heads_to_a_kv_head(interpreter: Interpreter, call: Call, batch: int) -> None:
    spec = make_spec(heads=(64, 4), dims=(128, 128), dtype="fp16")
    case = cases.make_case(shape_of(spec), "group", [70] * batch, [1] * batch, seed=2)
    result = call(interpreter, spec, case)
    reference = plain_decode(case, spec.group)
    torch.testing.assert_close(result.out.float(), reference, atol=2e-3, rtol=2e-3)


def plain_decode(case: cases.Case, group: int) -> Tensor:
    """Attention of one token over one table's blocks, all of one length."""
    length = int(case.seq_lens[0])
    count = -(-length // case.k_cache.shape[1])
    blocks = table_of(case)[:, :count].long()
    k, v = (cache[blocks].flatten(1, 2)[:, :length] for cache in (case.k_cache, case.v_cache))
    k, v = (rows.float().repeat_interleave(group, 2) for rows in (k, v))
    scores = torch.einsum("bhd,bkhd->bhk", case.q.float(), k) * case.sm_scale
    return torch.einsum("bhk,bkhd->bhd", scores.softmax(-1), v)


@two_kernels
@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 256, 512, 1024])
def test_tables_exactly_as_wide_as_needed(
    interpreter: Interpreter, call: Call, block_size: int
) -> None:
    """The last row of a larger tensor, whose next words are no block ids."""
    length = 65 if block_size < 64 else 3 * block_size + 1
    spec = make_spec(heads=(2, 1), block_size=block_size)
    values = positions(1, length) % 61
    case = known_case(spec, [length], values)
    width = -(-length // block_size)
    larger = torch.full((3, width + 64), 2**31 - 1, dtype=torch.int32)
    larger.view(-1)[64 : 64 + width] = table_of(case)[0, :width]
    table = larger.view(-1)[64 : 64 + width].unsqueeze(0)
    result = call(interpreter, spec, replace(case, lookup=table))
    check_rows(result, [float(values.mean())], [math.log(length)], tolerance=1e-3)


@two_kernels
def test_where_blocks_lie_changes_no_bit(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(block_size=8)
    case = cases.make_case(shape_of(spec), "places", [75, 40], [1, 1], seed=3)
    count = case.k_cache.shape[0]
    results = []
    for places in (
        torch.arange(count),
        torch.arange(count).flip(0),
        torch.randperm(count, generator=torch.Generator().manual_seed(4)),
        torch.arange(count) * 3 + 1,  # blocks of NaN between
    ):
        results.append(call(interpreter, spec, moved(case, places)))
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
def test_entries_past_the_last_block_are_not_block_ids(
    interpreter: Interpreter, call: Call
) -> None:
    spec = make_spec()
    case = known_case(spec, [5], positions(1, 5))
    case = moved(case, torch.tensor([0, 7, 2, 3]).roll(1 - int(table_of(case)[0, 0])))
    assert int(table_of(case)[0, 0]) == 7
    clean = call(interpreter, spec, with_table(case, torch.tensor([[7, 0, 0, 0]])))
    check_rows(clean, [2.0], [math.log(5)])
    odd = torch.tensor([[7, -1, 2**31 - 1, 999999]])
    assert same(call(interpreter, spec, with_table(case, odd)), clean)


@two_kernels
def test_block_ids_beyond_sixteen_bits(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(heads=(1, 1), block_size=1)
    case = known_case(spec, [3], positions(1, 3))
    ids = torch.tensor([65535, 65536, 65537])
    caches = []
    for cache in (case.k_cache, case.v_cache):
        larger = torch.full((65538, *cache.shape[1:]), math.nan, dtype=cache.dtype)
        larger[ids] = cache[table_of(case)[0, :3].long()]
        caches.append(larger)
    case = replace(with_table(case, ids[None]), k_cache=caches[0], v_cache=caches[1])
    check_rows(call(interpreter, spec, case), [1.0], [math.log(3)])


@one_token
def test_padding_rows_change_nothing(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec()
    real = cases.make_case(shape_of(spec), "replayed", [40, 9, 70], [1] * 3, seed=5)
    padding = torch.full((1, table_of(real).shape[1]), -1, dtype=torch.int32)
    padded = replace(
        real,
        q=torch.cat([real.q, torch.full_like(real.q[:1], math.nan)]),
        seq_lens=torch.cat([real.seq_lens, torch.zeros(1, dtype=torch.int32)]),
        lookup=torch.cat([table_of(real), padding]),
        cu_seqlens_q=torch.arange(5, dtype=torch.int32),
    )
    before = [real.k_cache.clone(), real.v_cache.clone()]
    alone, result = call(interpreter, spec, real), call(interpreter, spec, padded)
    assert same(Result(result.out[:3], result.lse[:3]), alone)
    assert bool((result.out[3] == 0).all()) and bool((result.lse[3] == -math.inf).all())
    for cache, kept in zip((padded.k_cache, padded.v_cache), before, strict=True):
        torch.testing.assert_close(cache, kept, atol=0, rtol=0, equal_nan=True)


@one_token
def test_a_reserved_block_is_never_read(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(window=20)
    case = cases.make_case(shape_of(spec), "reserved", [100, 0, 50], [1] * 3, seed=6)
    table = table_of(case).clone()
    table[0, : (100 - 20) // spec.block_size] = 0  # before the window
    table[1] = 0
    results = [
        call(interpreter, spec, replace(poisoned(case, k=k, v=v), lookup=table))
        for k, v in ((0.0, 0.0), (math.nan, math.nan))
    ]
    assert same(*results) and bool(results[0].out.isfinite().all())


@two_kernels
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pools_and_tables_may_be_views(interpreter: Interpreter, call: Call, layout: str) -> None:
    spec = make_spec(layout="HND" if layout == "HND" else "NHD")
    case = cases.make_case(shape_of(spec), "views", [40, 90], [1, 1], seed=7)
    plain = call(interpreter, spec, case)
    count, *block = case.k_cache.shape
    size = math.prod(block)
    # K in a pool where each block is followed by another tensor's and by 64 elements of padding.
    pool = torch.full((count, 2 * size + 64), math.nan, dtype=case.q.dtype)
    k_cache = pool[:, :size].view(count, *block)
    k_cache.copy_(case.k_cache)
    # V in the middle of a pool for three layers.
    layers = torch.full((count, 3, *block), math.nan, dtype=case.q.dtype)
    v_cache = layers[:, 1]
    v_cache.copy_(case.v_cache)
    width = table_of(case).shape[1]
    big = torch.tensor(ABSURD_IDS).repeat(2, width)[:, : width + 8].to(torch.int32)
    big[:, 3 : 3 + width] = table_of(case)
    viewed = replace(case, k_cache=k_cache, v_cache=v_cache, lookup=big[:, 3 : 3 + width])
    assert same(call(interpreter, spec, viewed), plain)


@two_kernels
def test_q_may_be_a_slice_and_out_a_view(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "fused", [40, 90, 5], [1] * 3, seed=8)
    plain = call(interpreter, spec, case)
    view = cases.strided(case, spec.layout)
    assert view.q.stride(0) != case.q.stride(0)
    assert same(call(interpreter, spec, view), plain)
    memory, out = guarded(3, spec.num_q_heads, spec.head_dim_v, case.q.dtype)
    assert same(call(interpreter, spec, view, out=out), plain)
    assert guard_is_intact(memory, out)


def test_ragged_queries_into_a_view(interpreter: Interpreter) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "ragged", [40, 70, 5], [2, 3, 1], seed=9)
    plain = Call("prefill")(interpreter, spec, case)
    memory, out = guarded(6, spec.num_q_heads, spec.head_dim_v, case.q.dtype)
    assert same(Call("prefill")(interpreter, spec, case, out=out), plain)
    assert guard_is_intact(memory, out)
