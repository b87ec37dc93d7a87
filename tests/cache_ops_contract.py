"""What write_kv, merge_states and copy_blocks must do on every backend, as plain functions.

A test of a backend calls each with its Ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from pagegen import oracle
from pagegen.spec import Spec
from tests.cache_ops import (
    BAD_BLOCK,
    BAD_SLOT,
    IS_NAN,
    Ops,
    State,
    check_copy,
    check_merge,
    check_merged,
    check_write,
    make_pool,
    make_state,
    merged,
    nearest_nan,
    new_kv,
    same,
    token_rows,
)

Check = Callable[[Ops, Ops, Spec], None]  # default variant, checked variant, spec


def write_scattered_slots(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Rows land in their slots, negative slots are skipped, guards stay."""
    last = 5 * spec.block_size - 1
    slots = [0, -1, last, -1, spec.block_size, -(2**40), last - 1]
    for which in (ops, checked):
        assert not check_write(which, spec, slots)
        assert not check_write(which, spec, [3 % spec.block_size])


def write_nothing(ops: Ops, checked: Ops, spec: Spec) -> None:
    """A batch of padding rows writes nothing, and its NaN is nobody's fault."""
    for which in (ops, checked):
        pool, (k, v) = make_pool(spec, 3), new_kv(spec, 3)
        before = pool.memory.clone()
        slots = torch.full((3,), -1)
        assert not which.write_kv(pool.k, pool.v, k.fill_(math.nan), v.fill_(math.nan), slots)
        assert same(pool.memory, before)


def write_more_tokens_than_a_tile(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Whole tiles and a rest; the rows of k and v past num_tokens are padding."""
    generator = torch.Generator().manual_seed(5)
    slots = torch.randperm(5 * spec.block_size, generator=generator)[:41].tolist()
    assert not check_write(ops, spec, slots)


def write_past_the_cache_is_named(ops: Ops, checked: Ops, spec: Spec) -> None:
    """The first bad slot is reported by its row and low bits, and skipped."""
    num_slots = 5 * spec.block_size
    assert check_write(checked, spec, [0, num_slots, 1]) == (BAD_SLOT, 1, 0, num_slots)
    assert check_write(checked, spec, [1, -1, 2**40 + 9]) == (BAD_SLOT, 2, 0, 9)
    assert check_write(checked, spec, [2**32 - 2]) == (BAD_SLOT, 0, 0, -2)


def write_nan_is_named(ops: Ops, checked: Ops, spec: Spec) -> None:
    """The token of a NaN in k or v that is stored."""
    for what in (1, 2):
        pool, kv = make_pool(spec, 3), new_kv(spec, 4)
        kv[what - 1][0, 0, 0] = math.nan  # skipped: no fault
        kv[what - 1][2, -1, -1] = math.nan
        fault = checked.write_kv(pool.k, pool.v, *kv, torch.tensor([-1, 1, 2, 3]))
        assert fault == (IS_NAN, 2, 2, what)


def write_nan_in_any_place_is_named(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Every element is looked at; the NaN nearest to infinity is one, infinity is none."""
    for lane in range(8):
        pool, (k, v) = make_pool(spec, 2), new_kv(spec, 1)
        v[0] = math.inf
        k[0] = -math.inf
        assert not checked.write_kv(pool.k, pool.v, k, v, torch.tensor([1]))
        nearest_nan(k[0, 0, lane])
        assert checked.write_kv(pool.k, pool.v, k, v, torch.tensor([1])) == (IS_NAN, 0, 0, 1)


def write_to_pools_that_differ(ops: Ops, checked: Ops, spec: Spec) -> None:
    """K and V each have strides of their own, and k and v end with their last token."""
    for which in (ops, checked):
        one, two, (k, v) = make_pool(spec, 3), make_pool(spec, 5, seed=1), new_kv(spec, 3)
        keys, want, values = one.clone(), one.clone(), two.clone().v[::2]
        slots = [4, -1, 2 * spec.block_size + 1]
        for token, slot in enumerate(slots):
            if slot >= 0:
                block, offset = divmod(slot, spec.block_size)
                token_rows(want.k, spec)[block, offset] = k[token]
        assert not which.write_kv(keys.k, values, k[:3], v[:3], torch.tensor(slots))
        assert same(keys.memory, want.memory)
        for token, slot in ((0, slots[0]), (2, slots[2])):
            block, offset = divmod(slot, spec.block_size)
            assert same(token_rows(values, spec)[block, offset], v[token])


def write_keeps_every_value(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Infinities, the largest numbers and subnormals pass bit by bit."""
    pool, (k, v) = make_pool(spec, 2), new_kv(spec, 1)
    limits = torch.finfo(k.dtype)
    k[0, 0, :5] = torch.tensor([math.inf, -math.inf, limits.max, limits.tiny / 4, -0.0])
    ops.write_kv(pool.k, pool.v, k, v, torch.tensor([1]))
    block, offset = divmod(1, spec.block_size)
    assert same(token_rows(pool.k, spec)[block, offset], k[0])


def merge_ordinary_states(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Every mix of strides; three merges in a row."""
    states = [make_state(spec, 5, seed=seed, gap=seed % 3) for seed in range(4)]
    whole = check_merge(ops, states[0], states[1])
    want = oracle.merge_states(states[0].out, states[0].lse, states[1].out, states[1].lse)
    for state in states[2:]:
        whole = check_merge(ops, whole, state)
        want = oracle.merge_states(*want, state.out, state.lse)
    check_merged(whole, want, num_merges=3)
    assert not merged(checked, states[1], states[2])[1]


def merge_empty_sides(ops: Ops, checked: Ops, spec: Spec) -> None:
    """An empty side (-inf, or +inf of other kernels) is ignored whatever its out holds."""
    for which in (ops, checked):
        for nothing in (-math.inf, math.inf):
            a, b = make_state(spec, 3, seed=1), make_state(spec, 3, seed=2, gap=1)
            b.out.fill_(math.nan)
            b.lse.fill_(nothing)
            for pair in ((a, b), (b, a)):
                got, fault = merged(which, *pair)
                assert not fault
                assert torch.equal(got.out, a.out) and torch.equal(got.lse, a.lse)
            a.lse.fill_(-math.inf)
            got, fault = merged(which, a, b)
            assert not fault
            assert bool((got.out == 0).all()) and bool((got.lse == -math.inf).all())


def merge_any_strides(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Either side, and the result, may have the gaps."""
    gaps = [make_state(spec, 5, seed=seed, gap=gap) for seed, gap in enumerate((0, 1, 2))]
    for which in (ops, checked):
        for a, b in ((0, 2), (2, 0), (1, 2), (2, 1)):
            into = make_state(spec, 5, seed=9, gap=3 - a)
            got, fault = merged(which, gaps[a], gaps[b], into)
            assert not fault
            one, two = gaps[a], gaps[b]
            check_merged(got, oracle.merge_states(one.out, one.lse, two.out, two.lse))


def merge_in_place(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Results in the memory of either side equal results elsewhere, every time."""
    a, b = make_state(spec, 5, seed=3), make_state(spec, 5, seed=4, gap=2)
    want, _ = merged(ops, a, b)
    for side in (0, 1):
        for which in (ops, ops, checked):
            pair = [State(state.out.clone(), state.lse.clone()) for state in (a, b)]
            got, _ = merged(which, pair[0], pair[1], pair[side])
            assert torch.equal(got.out, want.out) and torch.equal(got.lse, want.lse)


def merge_far_apart(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Weights are natural logarithms, and huge ones are no masks."""
    a, b = make_state(spec, 2, seed=5), make_state(spec, 2, seed=6)
    a.out.zero_()
    b.out.fill_(1.0)
    for base in (0.0, -65536.0, 40000.0):
        a.lse.fill_(base + math.log(1024))
        b.lse.fill_(base + math.log(64))
        got, _ = merged(ops, a, b)
        tolerance = 4e-3 if base == 0 and got.out.dtype != torch.float32 else 1e-2
        assert abs(float(got.out[0, 0, 0]) * 1088 / 64 - 1) < tolerance
        assert abs(float(got.lse[1, 0]) - base - math.log(1088)) < 1e-2


def merge_nan_is_named(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Token and head of the first NaN lse; without a check it spreads, and only to its row."""
    a, b = make_state(spec, 3, seed=7), make_state(spec, 3, seed=8, gap=1)
    b.lse[1, 2] = math.nan
    assert merged(checked, a, b)[1] == (IS_NAN, 1, 2, 1)
    assert merged(checked, b, a)[1] == (IS_NAN, 1, 2, 0)
    got, _ = merged(ops, a, b)
    assert bool(got.out[1, 2].isnan().all()) and bool(got.lse[1, 2].isnan())
    got.out[1, 2] = 0
    assert bool(got.out.isfinite().all())


def copy_pairs(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Whole blocks of K and of V, a block onto itself, in either layout and with gaps."""
    for which in (ops, checked):
        assert not check_copy(which, spec, [(0, 8), (3, 1), (3, 2), (5, 5)])
        assert not check_copy(which, spec, [(7, 0)])


def copy_bad_block_is_named(ops: Ops, checked: Ops, spec: Spec) -> None:
    """Pair, column and low bits of the id; the pair is skipped, the others are copied."""
    assert check_copy(checked, spec, [(0, 1), (2, 9)]) == (BAD_BLOCK, 1, 1, 9)
    assert check_copy(checked, spec, [(-1, 1), (2, 3)]) == (BAD_BLOCK, 0, 0, -1)
    assert check_copy(checked, spec, [(2**32 + 3, 1)]) == (BAD_BLOCK, 0, 0, 3)


CONTRACT: Final[tuple[Check, ...]] = (
    write_scattered_slots,
    write_nothing,
    write_more_tokens_than_a_tile,
    write_past_the_cache_is_named,
    write_nan_is_named,
    write_nan_in_any_place_is_named,
    write_to_pools_that_differ,
    write_keeps_every_value,
    merge_ordinary_states,
    merge_empty_sides,
    merge_any_strides,
    merge_in_place,
    merge_far_apart,
    merge_nan_is_named,
    copy_pairs,
    copy_bad_block_is_named,
)
