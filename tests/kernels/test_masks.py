"""Which keys a query sees: its sequence's length, causality and the window, as plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pagegen import cases
from tests.kernels.kernels import Kernels
from tests.kernels.specs import FP32_ONLY, make_spec, shape_of
from tests.kernels.tricks import (
    NOTHING,
    PREFILL,
    Call,
    check_rows,
    known_case,
    one_token,
    poisoned,
    positions,
    same,
    table_of,
)


@one_token
@pytest.mark.parametrize("dtype", ["bf16", "fp16", pytest.param("fp32", marks=FP32_ONLY)])
def test_what_lies_past_the_last_token_never_matters(
    kernels: Kernels, call: Call, dtype: str
) -> None:
    """Not even where a weight of 0 would meet it: 0 * NaN is NaN."""
    spec = make_spec(dtype=dtype)
    base = cases.make_case(shape_of(spec), "tails", [1, 3, 17, 150], [1] * 4, seed=1)
    clean = call(kernels, spec, poisoned(base, k=0.0, v=0.0))
    assert bool(clean.out.isfinite().all())
    for k, v in ((0.0, math.nan), (math.nan, math.inf)):
        assert same(call(kernels, spec, poisoned(base, k=k, v=v)), clean), (k, v)


@one_token
@pytest.mark.parametrize("causal", [True, False])
def test_lanes_past_seq_len_never_join_the_softmax(
    kernels: Kernels, call: Call, causal: bool
) -> None:
    """With and without causality, which would hide a missing length mask."""
    lengths = [1, 63, 65, 257]
    spec = make_spec(causal=causal)
    case = poisoned(known_case(spec, lengths, positions(4, 257)), k=0.0, v=1000.0)
    result = call(kernels, spec, case)
    check_rows(result, [(n - 1) / 2 for n in lengths], [math.log(n) for n in lengths])


def test_without_causality_every_query_sees_every_key(kernels: Kernels) -> None:
    spec = make_spec(causal=False)
    case = poisoned(known_case(spec, [65, 9], positions(2, 65), q_lens=[3, 40]), k=0.0, v=1000.0)
    result = PREFILL(kernels, spec, case)
    check_rows(result, [32.0] * 3 + [4.0] * 40, [math.log(65)] * 3 + [math.log(9)] * 40)


def test_queries_before_the_first_key_see_nothing(kernels: Kernels) -> None:
    """More queries than keys: rows without a key give 0 and -inf, the others are not disturbed."""
    spec = make_spec()
    case = known_case(spec, [2, 30], positions(2, 30) + 1, q_lens=[5, 1])
    result = PREFILL(kernels, spec, case)
    lse = [NOTHING, NOTHING, NOTHING, 0.0, math.log(2), math.log(30)]
    check_rows(result, [0.0, 0.0, 0.0, 1.0, 1.5, 15.5], lse)


def test_causal_is_aligned_to_the_end(kernels: Kernels) -> None:
    """Row r of a sequence sees keys 0 to seq_len - q_len + r, on every prefix about a block."""
    spec = make_spec(block_size=4)
    size = spec.block_size
    pairs = [
        (prefix + q_len, q_len)
        for prefix in (0, size - 1, size, size + 1)
        for q_len in range(1, size + 2)
    ]
    seq_lens, q_lens = [n for n, _ in pairs], [q for _, q in pairs]
    case = known_case(spec, seq_lens, positions(len(pairs), max(seq_lens)), q_lens=q_lens)
    seen = [n - q + row + 1 for n, q in pairs for row in range(q)]
    result = PREFILL(kernels, spec, case)
    check_rows(result, [(n - 1) / 2 for n in seen], [math.log(n) for n in seen])


@one_token
def test_the_window_of_one_token(kernels: Kernels, call: Call) -> None:
    """Its first tiles are empty, and what lies before it may have been freed."""
    spec = make_spec(window=8)
    case = known_case(spec, [200, 5], positions(2, 200))
    result = call(kernels, spec, case)
    check_rows(result, [195.5, 2.0], [math.log(8), math.log(5)])
    table = table_of(case).clone()
    table[0, : 192 // spec.block_size] = -1
    assert same(call(kernels, spec, replace(case, lookup=table)), result)


def test_a_tile_outside_some_rows_windows(kernels: Kernels) -> None:
    """One row needs a tile and another sees none of it: (-inf) - (-inf) must not spoil the row."""
    spec = make_spec(window=8)
    case = known_case(spec, [192], positions(1, 192), q_lens=[64])
    result = PREFILL(kernels, spec, case)
    check_rows(result, [p - 3.5 for p in range(128, 192)], [math.log(8)] * 64)
    whole = known_case(spec, [40], positions(1, 40), q_lens=[40])
    seen = [(max(0, p - 7), p) for p in range(40)]
    check_rows(
        PREFILL(kernels, spec, whole),
        [(first + last) / 2 for first, last in seen],
        [math.log(last - first + 1) for first, last in seen],
    )
