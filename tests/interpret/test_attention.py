"""Decode and prefill where the right answer is a plain number: masks, lengths, extremes, owners."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pagegen import cases
from pagegen.oracle import paged_attention
from pagegen.spec import Spec
from tests.interpret.harness import make_spec, shape_of
from tests.interpret.tricks import (
    ONE_TOKEN_CALLS,
    Call,
    check_rows,
    known_case,
    owners,
    poisoned,
    positions,
    same,
    table_of,
)
from tests.interpret.worker import Interpreter

one_token = pytest.mark.parametrize("call", ONE_TOKEN_CALLS, ids=str)
PREFILL = Call("prefill")
NOTHING = -math.inf


@one_token
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_what_lies_past_the_last_token_never_matters(
    interpreter: Interpreter, call: Call, dtype: str
) -> None:
    spec = make_spec(dtype=dtype)
    base = cases.make_case(shape_of(spec), "tails", [1, 3, 17, 31], [1] * 4, seed=1)
    clean = call(interpreter, spec, poisoned(base, k=0.0, v=0.0))
    assert bool(clean.out.isfinite().all())
    for k, v in ((0.0, math.nan), (0.0, math.inf), (math.nan, 0.0)):
        assert same(call(interpreter, spec, poisoned(base, k=k, v=v)), clean), (k, v)


@one_token
@pytest.mark.parametrize("causal", [True, False])
def test_lanes_past_seq_len_never_join_the_softmax(
    interpreter: Interpreter, call: Call, causal: bool
) -> None:
    lengths = [1, 63, 65, 257]
    spec = make_spec(causal=causal)
    case = poisoned(known_case(spec, lengths, positions(4, 257)), k=0.0, v=1000.0)
    result = call(interpreter, spec, case)
    check_rows(result, [(n - 1) / 2 for n in lengths], [math.log(n) for n in lengths])


def test_queries_before_the_first_key_see_nothing(interpreter: Interpreter) -> None:
    spec = make_spec()
    case = known_case(spec, [2, 30], positions(2, 30) + 1, q_lens=[5, 1])
    result = PREFILL(interpreter, spec, case)
    lse = [NOTHING, NOTHING, NOTHING, 0.0, math.log(2), math.log(30)]
    check_rows(result, [0.0, 0.0, 0.0, 1.0, 1.5, 15.5], lse)


@one_token
def test_an_empty_sequence_gives_nothing(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec()
    result = call(interpreter, spec, known_case(spec, [0, 1, 17, 0], positions(4, 17)))
    check_rows(result, [0.0, 0.0, 8.0, 0.0], [NOTHING, 0.0, math.log(17), NOTHING])
    alone = call(interpreter, spec, known_case(spec, [1, 17], positions(2, 17)))
    assert bool((result.out[1:3] == alone.out).all()) and bool((result.lse[1:3] == alone.lse).all())


@one_token
def test_real_logits_of_minus_65536_are_no_mask(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(dims=(64, 64))
    case = known_case(spec, [10, 5], positions(2, 10), q=-32.0, key=32.0, sm_scale=1.0)
    result = call(interpreter, spec, poisoned(case, k=32.0, v=100.0))
    check_rows(result, [4.5, 2.0], [-65536 + math.log(10), -65536 + math.log(5)])


def test_masked_keys_get_nothing_beside_logits_of_minus_65536(interpreter: Interpreter) -> None:
    spec = make_spec(dims=(64, 64))
    case = known_case(spec, [10], positions(1, 10), q_lens=[10], q=-32.0, key=32.0, sm_scale=1.0)
    seen = range(1, 11)
    lse = [-65536 + math.log(n) for n in seen]
    check_rows(PREFILL(interpreter, spec, case), [(n - 1) / 2 for n in seen], lse)


@one_token
def test_scores_beyond_half_precision(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(dims=(128, 128), dtype="fp16")
    case = known_case(spec, [33], positions(1, 33), q=64.0, key=64.0)
    check_rows(call(interpreter, spec, case), [16.0], [524288 / math.sqrt(128) + math.log(33)])


@one_token
def test_a_scale_of_zero_gives_the_mean(interpreter: Interpreter, call: Call) -> None:
    for soft_cap in (0.0, 5.0):
        spec = make_spec(soft_cap=soft_cap)
        case = known_case(spec, [70, 9], positions(2, 70), q=3.0, key=5.0, sm_scale=0.0)
        check_rows(call(interpreter, spec, case), [34.5, 4.0], [math.log(70), math.log(9)])


def check_oracle(interpreter: Interpreter, spec: Spec, call: Call, case: cases.Case) -> None:
    """Compare one call with the oracle."""
    result = call(interpreter, spec, case)
    out, lse = paged_attention(
        case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
        shape_of(spec).attention, case.sm_scale,
    )  # fmt: skip
    torch.testing.assert_close(result.out.double(), out, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(result.lse.double(), lse, atol=1e-4, rtol=1e-6)


@one_token
def test_the_window_of_one_token(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec(window=8)
    case = known_case(spec, [200, 5], positions(2, 200))
    result = call(interpreter, spec, case)
    check_rows(result, [195.5, 2.0], [math.log(8), math.log(5)])
    table = table_of(case).clone()
    table[0, : 192 // spec.block_size] = -1  # blocks before the window were freed
    assert same(call(interpreter, spec, replace(case, lookup=table)), result)


def test_a_tile_outside_some_rows_windows(interpreter: Interpreter) -> None:
    spec = make_spec(window=8)
    case = known_case(spec, [192], positions(1, 192), q_lens=[64])
    result = PREFILL(interpreter, spec, case)
    check_rows(result, [p - 3.5 for p in range(128, 192)], [math.log(8)] * 64)
    whole = known_case(spec, [40], positions(1, 40), q_lens=[40])
    seen = [(max(0, p - 7), p) for p in range(40)]
    check_rows(
        PREFILL(interpreter, spec, whole),
        [(first + last) / 2 for first, last in seen],
        [math.log(last - first + 1) for first, last in seen],
    )


def test_the_soft_cap_reaches_every_path(interpreter: Interpreter) -> None:
    outs = {}
    for soft_cap in (0.0, 5.0, 50.0):
        spec = make_spec(soft_cap=soft_cap)
        case = cases.make_case(shape_of(spec), "cap", [70, 20], [1, 1], seed=3, magnitude=2.5)
        for call in ONE_TOKEN_CALLS:
            check_oracle(interpreter, spec, call, case)
        outs[soft_cap] = call(interpreter, spec, case).out
    assert float((outs[0.0] - outs[5.0]).abs().max()) > 0.1
    assert float((outs[50.0] - outs[5.0]).abs().max()) > 0.1


def test_causal_is_aligned_to_the_end(interpreter: Interpreter) -> None:
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
    result = PREFILL(interpreter, spec, case)
    check_rows(result, [(n - 1) / 2 for n in seen], [math.log(n) for n in seen])


HEADS = [(12, 12), (32, 8), (28, 4), (71, 1), (40, 8), (10, 2)]


@pytest.mark.parametrize("call", ONE_TOKEN_CALLS[1:], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_query_head_finds_its_kv_head(
    interpreter: Interpreter, call: Call, heads: tuple[int, int]
) -> None:
    spec = make_spec(heads=heads)
    kv_head = torch.arange(1.0, heads[1] + 1).reshape(1, 1, -1, 1).expand(-1, 150, -1, -1)
    result = call(interpreter, spec, known_case(spec, [150], kv_head))
    expected = 1 + torch.arange(heads[0]) // spec.group
    assert bool((result.out[0] == expected[:, None]).all())


@pytest.mark.parametrize("splits", [1, 4])
def test_every_sequence_keeps_its_own_rows(interpreter: Interpreter, splits: int) -> None:
    spec = make_spec()
    lengths = [40, 170, 5]
    case = known_case(spec, lengths, owners(3, 170))
    result = Call("decode", splits)(interpreter, spec, case)
    check_rows(result, [1.0, 2.0, 3.0], [math.log(n) for n in lengths])
    case = known_case(spec, lengths, owners(3, 170), q_lens=[2, 3, 1])
    seen = [39, 40, 168, 169, 170, 5]
    result = PREFILL(interpreter, spec, case)
    check_rows(result, [1.0, 1.0, 2.0, 2.0, 2.0, 3.0], [math.log(n) for n in seen])


def test_sequences_without_queries(interpreter: Interpreter) -> None:
    spec = make_spec()
    case = known_case(spec, [9, 12, 5, 30], owners(4, 30), q_lens=[0, 1, 0, 1])
    check_rows(PREFILL(interpreter, spec, case), [2.0, 4.0], [math.log(12), math.log(30)])
    none = known_case(spec, [9, 12], owners(2, 12), q_lens=[0, 0])
    assert PREFILL(interpreter, spec, none).out.shape[0] == 0


def test_more_than_a_hundred_sequences(interpreter: Interpreter) -> None:
    spec = make_spec(heads=(2, 1))
    lengths = [1 + i % 3 for i in range(130)]
    q_lens = [int(i % 4 == 0) for i in range(130)]
    case = known_case(spec, lengths, owners(130, 3), q_lens=q_lens)
    rows = [i for i in range(130) if q_lens[i]]
    lse = [math.log(lengths[i]) for i in rows]
    check_rows(PREFILL(interpreter, spec, case), [i + 1.0 for i in rows], lse)


@one_token
def test_a_table_without_columns(interpreter: Interpreter, call: Call) -> None:
    spec = make_spec()
    case = known_case(spec, [0, 0], positions(2, 1))
    case = replace(case, lookup=torch.zeros(2, 0, dtype=torch.int32))
    check_rows(call(interpreter, spec, case), [0.0, 0.0], [NOTHING, NOTHING])
