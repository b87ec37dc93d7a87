"""write_kv, merge_states and copy_blocks, held to the contract of all backends."""

from __future__ import annotations

import pytest
import torch

from tests.cache_ops import check_copy, check_write, make_pool, new_kv, same, token_rows
from tests.cache_ops_contract import CONTRACT, Check
from tests.kernels.kernels import Kernels
from tests.kernels.ops import LaunchedOps
from tests.kernels.specs import FP32_ONLY
from tests.specimens import specimen

BF16, FP16, FP32 = (
    {"dtype_query": name, "dtype_kv": name, "dtype_out": name} for name in ("bf16", "fp16", "fp32")
)
SPECS = {
    "nhd-bf16": specimen(**BF16),
    "hnd-fp16": specimen(layout="HND", block_size=24, num_kv_heads=3, num_q_heads=3, **FP16),
    # A row of V is 24 vectors: neither a token's rows nor a group of them fill a thread block.
    "dims-fp16": specimen(num_q_heads=6, head_dim=40, head_dim_v=192, block_size=10, **FP16),
    "dims-fp32": specimen(head_dim=40, head_dim_v=72, block_size=10, **FP32),
}
names = [pytest.param(name, marks=FP32_ONLY if name.endswith("fp32") else ()) for name in SPECS]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", names)
def test_contract(kernels: Kernels, check: Check, name: str) -> None:
    spec = SPECS[name]
    ops = [LaunchedOps(kernels, spec, variant) for variant in ("default", "checked")]
    check(ops[0], ops[1], spec)


@pytest.mark.parametrize("dim", [40, 72, 80, 96, 112, 120, 160, 192, 256])
def test_rows_of_every_width_are_moved_whole(kernels: Kernels, dim: int) -> None:
    """All lanes, and not one of the gap behind them."""
    spec = specimen(head_dim=dim, head_dim_v=dim, **FP16)
    ops = LaunchedOps(kernels, spec, "default")
    check_write(ops, spec, [5, -1, 0, 19])
    check_copy(ops, spec, [(0, 1), (2, 4)], num_blocks=5)


def test_a_token_of_more_rows_than_registers_hold_is_moved_in_passes(kernels: Kernels) -> None:
    spec = specimen(num_q_heads=130, num_kv_heads=130, head_dim=256, head_dim_v=256)
    check_write(LaunchedOps(kernels, spec, "default"), spec, [5, -1, 0], num_blocks=2)


def test_slots_and_pairs_may_start_anywhere(kernels: Kernels) -> None:
    """Slices of a runtime's buffers: no alignment beyond their own elements'."""
    spec = SPECS["nhd-bf16"]
    ops = LaunchedOps(kernels, spec, "default")
    pool, (k, v) = make_pool(spec, 3), new_kv(spec, 2)
    ops.write_kv(pool.k, pool.v, k, v, torch.tensor([7, 4, 0, 9])[1:3])
    rows_k, rows_v = token_rows(pool.k, spec), token_rows(pool.v, spec)
    assert same(rows_k[1, 0], k[0]) and same(rows_v[0, 0], v[1])
    before = pool.clone()
    ops.copy_blocks(pool.k, pool.v, torch.tensor([9, 0, 2, 9])[1:3].view(1, 2))
    assert same(pool.k[2], before.k[0]) and same(pool.v[2], before.v[0])
    assert same(pool.k[:2], before.k[:2]) and same(pool.v[:2], before.v[:2])
