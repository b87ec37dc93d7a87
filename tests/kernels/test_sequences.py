"""Batches: each sequence its own rows, and those that are empty, without queries, or padding."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagegen import cases
from pagegen.spec import Lookup
from tests.kernels.calls import Result
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import (
    NOTHING,
    PREFILL,
    Call,
    check_rows,
    known_case,
    one_token,
    owners,
    positions,
    same,
    table_of,
)


@one_token
def test_an_empty_sequence_gives_nothing(kernels: Kernels, call: Call) -> None:
    """0 and -inf, written and not left; its neighbours are as without it."""
    spec = make_spec()
    result = call(kernels, spec, known_case(spec, [0, 1, 17, 0], positions(4, 17)))
    check_rows(result, [0.0, 0.0, 8.0, 0.0], [NOTHING, 0.0, math.log(17), NOTHING])
    alone = call(kernels, spec, known_case(spec, [1, 17], positions(2, 17)))
    assert same(Result(result.out[1:3], result.lse[1:3]), alone)


@pytest.mark.parametrize("splits", [1, 4])
def test_every_sequence_keeps_its_own_rows(kernels: Kernels, splits: int) -> None:
    spec = make_spec()
    lengths = [40, 170, 5]
    case = known_case(spec, lengths, owners(3, 170))
    result = Call("decode", splits)(kernels, spec, case)
    check_rows(result, [1.0, 2.0, 3.0], [math.log(n) for n in lengths])


def test_every_sequence_keeps_its_own_queries(kernels: Kernels) -> None:
    spec = make_spec()
    case = known_case(spec, [40, 170, 5], owners(3, 170), q_lens=[2, 3, 1])
    seen = [39, 40, 168, 169, 170, 5]
    result = PREFILL(kernels, spec, case)
    check_rows(result, [1.0, 1.0, 2.0, 2.0, 2.0, 3.0], [math.log(n) for n in seen])


def test_sequences_without_queries(kernels: Kernels) -> None:
    """At the start, in the middle and at the end, several in a row, and all of them."""
    spec = make_spec()
    q_lens = [0, 0, 1, 0, 0, 1, 0, 0]
    lengths = [9, 3, 12, 5, 8, 30, 7, 1]
    case = known_case(spec, lengths, owners(8, 30), q_lens=q_lens)
    check_rows(PREFILL(kernels, spec, case), [3.0, 6.0], [math.log(12), math.log(30)])
    none = known_case(spec, [9, 12], owners(2, 12), q_lens=[0, 0])
    assert PREFILL(kernels, spec, none).out.shape[0] == 0


def test_more_than_a_hundred_sequences(kernels: Kernels) -> None:
    spec = make_spec(heads=(2, 1))
    lengths = [1 + i % 3 for i in range(130)]
    q_lens = [int(i % 4 == 0) for i in range(130)]
    case = known_case(spec, lengths, owners(130, 3), q_lens=q_lens)
    rows = [i for i in range(130) if q_lens[i]]
    lse = [math.log(lengths[i]) for i in rows]
    check_rows(PREFILL(kernels, spec, case), [i + 1.0 for i in rows], lse)


@one_token
@pytest.mark.parametrize("lookup", ["table", "csr"])
def test_a_table_without_columns(kernels: Kernels, call: Call, lookup: Lookup) -> None:
    """Legal where every sequence is empty: nothing is read."""
    spec = make_spec(lookup=lookup)
    case = known_case(spec, [0, 0], positions(2, 1))
    nothing = torch.zeros(2, 0, dtype=torch.int32)
    if isinstance(case.lookup, tuple):
        case = replace(case, lookup=(case.lookup[0], nothing.view(-1)))
    else:
        case = replace(case, lookup=nothing)
    check_rows(call(kernels, spec, case), [0.0, 0.0], [NOTHING, NOTHING])


@one_token
def test_padding_rows_change_nothing(kernels: Kernels, call: Call) -> None:
    """As in a captured graph: length 0, a table of -1, and NaN for a query."""
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
    alone, result = call(kernels, spec, real), call(kernels, spec, padded)
    assert same(Result(result.out[:3], result.lse[:3]), alone)
    assert bool((result.out[3] == 0).all()) and bool((result.lse[3] == NOTHING).all())
    for cache, kept in zip((padded.k_cache, padded.v_cache), before, strict=True):
        torch.testing.assert_close(cache, kept, atol=0, rtol=0, equal_nan=True)


def test_rows_of_no_sequence_stay(kernels: Kernels) -> None:
    """Rows of q past cu_seqlens_q's last are padding: their results are not written."""
    spec = make_spec()
    case = known_case(spec, [5, 6], positions(2, 6), q_lens=[2, 1])
    rows = torch.full((70, *case.q.shape[1:]), math.nan, dtype=case.q.dtype)
    padded = replace(case, q=torch.cat([case.q, rows]))
    result = PREFILL(kernels, spec, padded)
    assert bool(result.out[3:].isnan().all()) and bool(result.lse[3:].isnan().all())
    assert same(Result(result.out[:3], result.lse[:3]), PREFILL(kernels, spec, case))
