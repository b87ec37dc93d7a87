"""Where decode and prefill in plain PyTorch read and write: tables, strides, edges, chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagegen import cases
from pagegen.lower.common import torch_constants
from tests.kernels.calls import Result
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import (
    check_rows,
    known_case,
    owners,
    positions,
    same,
    table_of,
    with_table,
)
from tests.rendering import load_kernel

Run = Callable[..., Result]
VARIANTS = ("default", "checked")
kernels = pytest.mark.parametrize("kernel", ["decode", "prefill"])


@kernels
def test_blocks_before_the_window_are_not_read(run: Run, kernel: str) -> None:
    spec = make_spec(window=32)
    case = known_case(spec, [65, 20], positions(2, 65))
    table = table_of(case).clone()
    table[0, :2] = torch.tensor([-1, 2**31 - 1])
    for variant in VARIANTS:
        result = run(spec, kernel, with_table(case, table), variant=variant)
        check_rows(result, [48.5, 9.5], [math.log(32), math.log(20)])
        assert result.fault[0] == 0


@pytest.mark.parametrize("heads", [(12, 12), (32, 8), (28, 4), (71, 1), (40, 8), (10, 2)])
@kernels
def test_every_query_head_reads_its_kv_head(run: Run, kernel: str, heads: tuple[int, int]) -> None:
    spec = make_spec(heads=heads)
    values = torch.arange(1.0, heads[1] + 1).reshape(1, 1, -1, 1)
    result = run(spec, kernel, known_case(spec, [19], values.expand(1, 19, -1, 1)))
    want = torch.arange(heads[0]) // (heads[0] // heads[1]) + 1
    assert torch.equal(result.out[0], want.float().unsqueeze(1).expand(-1, 32))


@kernels
def test_lanes_past_the_value_width_only_score(run: Run, kernel: str) -> None:
    spec = make_spec(heads=(16, 1), dims=(192, 128))
    case = known_case(spec, [19], positions(1, 19))
    case.k_cache[..., 128:] = torch.where(case.k_cache[..., 128:].isnan(), math.nan, 1e4)
    check_rows(run(spec, kernel, case), [9.0], [math.log(19)])


@kernels
def test_a_table_just_wide_enough(run: Run, kernel: str) -> None:
    for block_size in (1, 2, 8, 16, 256):
        spec = make_spec(block_size=block_size)
        case = known_case(spec, [65], positions(1, 65))
        width = -(-65 // block_size)
        big = torch.full((3, width), 2**31 - 1, dtype=torch.int32)
        big[1] = table_of(case)[0, :width]
        check_rows(run(spec, kernel, with_table(case, big[1:2])), [32.0], [math.log(65)])


@kernels
def test_where_blocks_lie_does_not_matter(run: Run, kernel: str) -> None:
    spec = make_spec(dtype="bf16")
    case = cases.make_case(shape_of(spec), "places", [70, 33], [1, 1], seed=4)
    want = run(spec, kernel, case)
    num_blocks = case.k_cache.shape[0]
    for order in (torch.arange(num_blocks).flip(0), torch.randperm(num_blocks)):
        table, place = table_of(case).clone(), order.argsort()
        used = (table >= 0) & (table < num_blocks)
        table[used] = place[table[used].long()].int()
        moved = replace(case, k_cache=case.k_cache[order], v_cache=case.v_cache[order])
        assert same(run(spec, kernel, with_table(moved, table)), want)


def test_ragged_queries_reach_their_own_rows(run: Run) -> None:
    spec = make_spec()
    case = known_case(spec, [40, 70, 5], owners(3, 70), q_lens=[2, 3, 1])
    guard = torch.full((spec.num_q_heads + 2, 7, spec.head_dim_v + 8), 77.0)
    out = guard[1:-1, :6, : spec.head_dim_v].transpose(0, 1)
    result = run(spec, "prefill", case, out=out)
    sees = [math.log(n) for n in (39, 40, 68, 69, 70, 5)]
    check_rows(result, [1, 1, 2, 2, 2, 3], sees)
    out.fill_(77.0)
    assert bool((guard == 77.0).all())


@kernels
def test_views_are_read_as_they_lie(run: Run, kernel: str) -> None:
    spec = make_spec(layout="HND", block_size=4)
    plain = cases.make_case(shape_of(spec), "plain", [9, 30, 2], [1] * 3, seed=5)
    pool = torch.full((plain.k_cache.shape[0], 2, 3, *plain.k_cache.shape[1:]), math.nan)
    pool[:, 0, 1], pool[:, 1, 1] = plain.k_cache, plain.v_cache
    wide = torch.full((3, table_of(plain).shape[1] + 5), -1, dtype=torch.int32)
    wide[:, 3:-2] = table_of(plain)
    lens = torch.zeros(6, dtype=torch.int32)
    lens[::2] = plain.seq_lens
    case = replace(
        plain,
        k_cache=pool[:, 0, 1],
        v_cache=pool[:, 1, 1],
        lookup=wide[:, 3:-2],
        seq_lens=lens[::2],
    )
    assert same(run(spec, kernel, case), run(spec, kernel, plain))


@kernels
@pytest.mark.parametrize("lookup", ["table", "csr"])
def test_batches_without_anything(run: Run, kernel: str, lookup: str) -> None:
    spec = make_spec(lookup="csr" if lookup == "csr" else "table")
    for lens in ([], [0, 0]):
        case = known_case(spec, lens, positions(len(lens), 1))
        if isinstance(case.lookup, tuple):
            case = replace(case, lookup=(case.lookup[0], case.lookup[1][:0]))
        else:
            case = replace(case, lookup=case.lookup[:, :0])
        for variant in VARIANTS:
            result = run(spec, kernel, case, variant=variant)
            check_rows(result, [0.0] * len(lens), [-math.inf] * len(lens))


def test_sequences_without_queries(run: Run) -> None:
    spec = make_spec()
    q_lens = [0, 1, 0, 0, 1, 0]
    case = known_case(spec, [5, 6, 7, 0, 9, 3], owners(6, 9), q_lens=q_lens)
    check_rows(run(spec, "prefill", case), [2.0, 5.0], [math.log(6), math.log(9)])
    many = known_case(spec, [3] * 150, owners(150, 3), q_lens=[i % 2 for i in range(150)])
    check_rows(run(spec, "prefill", many), [2.0 + 2 * i for i in range(75)], [math.log(3)] * 75)


def test_rows_of_no_sequence_stay(run: Run) -> None:
    spec = make_spec()
    case = known_case(spec, [5, 6], positions(2, 6), q_lens=[2, 1])
    padded = replace(case, q=torch.cat([case.q, torch.full_like(case.q, math.nan)]))
    result = run(spec, "prefill", padded)
    assert bool(result.out[3:].isnan().all()) and bool(result.lse[3:].isnan().all())
    assert torch.equal(result.out[:3], run(spec, "prefill", case).out)


@kernels
def test_without_lse(run: Run, kernel: str) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "no lse", [20, 3], [1, 1], seed=6)
    result = run(spec, kernel, case, with_lse=False)
    assert torch.equal(result.out, run(spec, kernel, case).out)
    assert bool(result.lse.isnan().all())


@pytest.mark.parametrize("elements", [1, 1000])
def test_small_chunks_change_nothing(
    run: Run, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of one tile each, as where memory is short."""
    spec = make_spec(window=30)
    smaller = {"CPU_ELEMENTS": elements, "TILE_TOKENS": 5}
    rows = tuple(replace(row, value=smaller.get(row.name, row.value)) for row in torch_constants())
    shape = shape_of(spec)
    calls = [("prefill", case) for case in cases.prefill_cases(shape, seed=33)]
    calls += [("decode", case) for case in cases.decode_cases(shape, seed=34)]
    whole = [run(spec, kernel, case) for kernel, case in calls]
    for family in ("decode", "prefill"):
        monkeypatch.setattr(f"pagegen.lower.{family}.torch_constants", lambda: rows)
    spec = replace(spec, name=f"small_{elements}")
    for (kernel, case), want in zip(calls, whole, strict=True):
        got = run(spec, kernel, case)
        assert bool(((got.out - want.out).abs() < 1e-5).all()), case.name
        assert bool(torch.isclose(got.lse, want.lse, rtol=1e-6, atol=1e-5).all()), case.name


@kernels
def test_without_reading_lengths_the_result_is_the_same(
    run: Run, kernel: str, tmp_path: Path
) -> None:
    """As on a device, where the table's width bounds what is gathered."""
    spec = make_spec(window=30, heads=(6, 2), lookup="table")
    module = load_kernel(replace(spec, backends=("torch",)), kernel, "torch", tmp_path)
    original = module.in_chunks
    vars(module)["in_chunks"] = lambda *arguments, on_cpu: original(*arguments, on_cpu=False)
    made = cases.decode_cases if kernel == "decode" else cases.prefill_cases
    for case in made(shape_of(spec), seed=35):
        want = run(spec, kernel, case)
        out, lse = torch.full_like(want.out, math.nan), torch.full_like(want.lse, math.nan)
        lens = (case.seq_lens, case.cu_seqlens_q)[: 1 + (kernel == "prefill")]
        caches = (case.k_cache, case.v_cache, case.lookup)
        getattr(module, kernel)(out, lse, case.q, *caches, *lens, case.sm_scale)
        assert bool(((out - want.out).abs() < 1e-5).all()), case.name
        assert bool(torch.isclose(lse, want.lse, rtol=1e-6, atol=1e-5).all()), case.name
