"""Sizes that pass 32-bit offsets, the other grid axes' limit and any fixed scratch, on a GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pagegen.runtime.loader import load
from tests.gpu.test_packages import ROOT

FOLDER = ROOT / "generated/llama3_8b"  # 32/8 heads of 128, blocks of 16, NHD
BF16 = torch.bfloat16

pytestmark = pytest.mark.skipif(
    not (FOLDER / "cubin/artifacts.json").is_file(), reason=f"{FOLDER} is not built"
)


@pytest.fixture(scope="module", params=["cuda", "triton"])
def ops(request: pytest.FixtureRequest) -> Any:
    return load(FOLDER, backend=request.param)


def room(gigabytes: int) -> None:
    """Skip where the GPU has no such memory left."""
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < gigabytes << 30:
        pytest.skip(f"needs {gigabytes} GB of GPU memory")


def test_slots_past_two_to_the_31_elements(ops: Any) -> None:
    room(12)
    num_blocks = 131_080  # of 16,384 elements: past 2**31
    k_cache, v_cache = (
        torch.zeros(num_blocks, 16, 8, 128, dtype=BF16, device="cuda") for _ in "kv"
    )
    k, v = (torch.randn(3, 8, 128, device="cuda").to(BF16) for _ in "kv")
    slots = torch.tensor([131_072 * 16 + 5, -1, 131_079 * 16 + 15], device="cuda")
    ops.write_kv(k, v, k_cache, v_cache, slots)
    for cache, new in ((k_cache, k), (v_cache, v)):
        rows = cache.view(-1, 8, 128)
        assert torch.equal(rows[slots[0]], new[0]) and torch.equal(rows[slots[2]], new[2])
        assert int(torch.count_nonzero(cache)) == int(torch.count_nonzero(new[[0, 2]]))
    q = torch.randn(1, 32, 128, device="cuda").to(BF16)
    table = torch.tensor([[131_079]], dtype=torch.int32, device="cuda")
    lens = torch.tensor([16], dtype=torch.int32, device="cuda")
    far = ops.decode(q, k_cache, v_cache, table, lens)
    near = ops.decode(q, k_cache[131_079:], v_cache[131_079:], table * 0, lens)
    assert torch.equal(far, near)


def test_queries_past_two_to_the_31_elements(ops: Any) -> None:
    room(24)
    num_seqs = 524_400  # query tokens of 4,096 elements: past 2**31
    k_cache = torch.zeros(1, 16, 8, 128, dtype=BF16, device="cuda")
    v_cache = torch.arange(1, 9, device="cuda").view(1, 1, 8, 1).expand(1, 16, 8, 128).to(BF16)
    q = torch.ones(num_seqs, 32, 128, dtype=BF16, device="cuda")
    table = torch.zeros(num_seqs, 1, dtype=torch.int32, device="cuda")
    lens = torch.ones(num_seqs, dtype=torch.int32, device="cuda")
    starts = torch.arange(num_seqs + 1, dtype=torch.int32, device="cuda")
    wanted = torch.arange(32, device="cuda").div(4, rounding_mode="floor").add(1).to(BF16)
    for out in (
        ops.prefill(q, k_cache, v_cache.contiguous(), table, lens, starts, max_seqlen_q=1),
        ops.decode(q, k_cache, v_cache.contiguous(), table, lens),
    ):
        assert bool((out == wanted.view(1, 32, 1)).all())


@pytest.mark.parametrize("num_seqs", [65_536, 70_000])
def test_more_sequences_than_a_grid_axis_takes(ops: Any, num_seqs: int) -> None:
    room(8)
    owner = torch.arange(num_seqs, device="cuda") % 97
    k_cache = torch.zeros(num_seqs, 16, 8, 128, dtype=BF16, device="cuda")[:, :16]
    v_cache = owner.view(-1, 1, 1, 1).expand(-1, 16, 8, 128).to(BF16)
    q = torch.ones(num_seqs, 32, 128, dtype=BF16, device="cuda")
    table = torch.arange(num_seqs, dtype=torch.int32, device="cuda").unsqueeze(1)
    lens = torch.ones(num_seqs, dtype=torch.int32, device="cuda")
    out = ops.decode(q, k_cache, v_cache, table, lens)
    assert torch.equal(out[:, 0, 0], owner.to(BF16)) and torch.equal(out[:, 31, 127], out[:, 0, 0])


@pytest.mark.parametrize("num_splits", [None, 1, 256])
def test_a_million_tokens(ops: Any, num_splits: int | None) -> None:
    room(8)
    seq_len = 1_000_000
    k_cache = torch.zeros(62_500, 16, 8, 128, dtype=BF16, device="cuda")
    v_cache = torch.ones_like(k_cache)
    table = torch.randperm(62_500, device="cuda").to(torch.int32).unsqueeze(0)
    lens = torch.tensor([seq_len], dtype=torch.int32, device="cuda")
    q = torch.ones(1, 32, 128, dtype=BF16, device="cuda")
    out, lse = ops.decode(q, k_cache, v_cache, table, lens, return_lse=True, num_splits=num_splits)
    assert torch.equal(out, torch.ones_like(out))
    assert float((lse - math.log(seq_len)).abs().max()) < 1e-3
