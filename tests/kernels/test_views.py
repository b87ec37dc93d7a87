"""Tensors that are views: pools with gaps, slices of fused rows, results inside larger tensors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagegen import cases
from pagegen.cases import ABSURD_IDS
from pagegen.spec import Layout
from tests.kernels.kernels import Kernels
from tests.kernels.specs import make_spec, shape_of
from tests.kernels.tricks import (
    PREFILL,
    Call,
    guard_is_intact,
    guarded,
    same,
    table_of,
    two_kernels,
)


@two_kernels
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pools_and_tables_may_be_views(kernels: Kernels, call: Call, layout: Layout) -> None:
    """Blocks of K and of V lie in pools of their own strides, the table in a wider one."""
    spec = make_spec(layout=layout)
    case = cases.make_case(shape_of(spec), "views", [40, 90], [1, 1], seed=7)
    plain = call(kernels, spec, case)
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
    assert same(call(kernels, spec, viewed), plain)


@two_kernels
def test_k_and_v_may_share_a_pool(kernels: Kernels, call: Call) -> None:
    """Block by block, [num_blocks, 2, block_size, ..]: both are views of one tensor."""
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "interleaved", [40, 90], [1, 1], seed=7)
    pool = torch.stack([case.k_cache, case.v_cache], dim=1)
    viewed = replace(case, k_cache=pool[:, 0], v_cache=pool[:, 1])
    assert same(call(kernels, spec, viewed), call(kernels, spec, case))


@two_kernels
def test_q_may_be_a_slice_and_out_a_view(kernels: Kernels, call: Call) -> None:
    """q's strides are not out's, and nothing beside out is written."""
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "fused", [40, 90, 5], [1] * 3, seed=8)
    plain = call(kernels, spec, case)
    view = cases.strided(case, spec.layout)
    assert view.q.stride(0) != case.q.stride(0)
    assert same(call(kernels, spec, view), plain)
    memory, out = guarded(3, spec.num_q_heads, spec.head_dim_v, case.q.dtype)
    assert same(call(kernels, spec, view, out=out), plain)
    assert guard_is_intact(memory, out)


def test_ragged_queries_into_a_view(kernels: Kernels) -> None:
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "ragged", [40, 70, 5], [2, 3, 1], seed=9)
    plain = PREFILL(kernels, spec, case)
    memory, out = guarded(6, spec.num_q_heads, spec.head_dim_v, case.q.dtype)
    assert same(PREFILL(kernels, spec, case, out=out), plain)
    assert guard_is_intact(memory, out)


@two_kernels
def test_metadata_may_start_anywhere(kernels: Kernels, call: Call) -> None:
    """Tables, lengths and starts are slices of a runtime's buffers: no alignment, odd widths."""
    spec = make_spec()
    case = cases.make_case(shape_of(spec), "odd", [40, 90, 5], [1] * 3, seed=11)
    table = table_of(case)
    odd = replace(
        case,
        lookup=one_further(table)[:, : table.shape[1]],
        seq_lens=one_further(case.seq_lens),
        cu_seqlens_q=one_further(case.cu_seqlens_q),
    )
    assert odd.seq_lens.data_ptr() % 16 and odd.cu_seqlens_q.data_ptr() % 16
    assert same(call(kernels, spec, odd), call(kernels, spec, case))


def one_further(tensor: Tensor) -> Tensor:
    """The same, starting one element into its memory, between absurd ones."""
    larger = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 2), ABSURD_IDS[1])
    larger = larger.to(tensor.dtype)
    larger[..., 1:-1] = tensor
    return larger[..., 1:-1]
