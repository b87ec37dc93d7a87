"""Tiles of write_kv, copy_blocks and merge_states: all is moved once, whatever the shape."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from pagegen.emit import emit
from pagegen.lower import lower
from pagegen.lower.cache import MAX_HELD, MAX_THREADS, tile_tokens, write_tile
from pagegen.lower.merge import merge_constants
from pagegen.plan import Backend, Plan
from tests.rendering import plan_of
from tests.specimens import specimen

dims = st.integers(4, 32).map(lambda n: 8 * n)
shapes = st.fixed_dictionaries(
    {
        "num_kv_heads": st.integers(1, 130),
        "head_dim": dims,
        "head_dim_v": dims,
        "block_size": st.integers(1, 300),
        "layout": st.sampled_from(["NHD", "HND"]),
    }
)


def plan(kernel: str, backend: Backend, shape: dict[str, Any], **changes: Any) -> Plan:
    spec = specimen(
        backends=(backend,),
        kernels=(kernel,),
        num_q_heads=shape["num_kv_heads"],
        **shape,
        **changes,
    )
    return plan_of(spec, kernel, backend)


@given(shapes)
@settings(max_examples=60, deadline=None)
def test_write_kv_moves_every_vector_of_a_tile(shape: dict[str, Any]) -> None:
    made = plan("write_kv", "cuda", shape)
    assert made.num_threads == made.constant("NUM_THREADS") <= MAX_THREADS
    assert made.constant("TILE_TOKENS") <= made.num_threads, "a thread finds a token's slot"
    for name, dim in (("K", "head_dim"), ("V", "head_dim_v")):
        items = made.constant(f"{name}_ITEMS")
        vectors = made.constant("TILE_TOKENS") * shape["num_kv_heads"] * shape[dim] // 8
        assert items <= MAX_HELD
        assert items * made.num_threads * made.constant("PASSES") >= vectors


@given(shapes)
@settings(max_examples=60, deadline=None)
def test_copy_blocks_moves_every_vector_of_a_block(shape: dict[str, Any]) -> None:
    made = plan("copy_blocks", "cuda", shape)
    assert made.num_threads <= 1024
    for name, dim in (("K", "head_dim"), ("V", "head_dim_v")):
        part = made.constant(f"{name}_PART")
        vectors = shape["block_size"] * shape["num_kv_heads"] * shape[dim] // 8
        assert part * made.constant("PARTS") >= vectors
        assert made.constant(f"{name}_ITEMS") * made.num_threads >= part


@given(shapes)
@settings(max_examples=60, deadline=None)
def test_rows_of_a_block_are_numbered_as_they_lie(shape: dict[str, Any]) -> None:
    made = plan("copy_blocks", "triton", shape)
    heads, tokens = shape["num_kv_heads"], shape["block_size"]
    places = {
        (
            row // made.constant("TOKEN_ROWS") % tokens,
            row // made.constant("HEAD_ROWS") % heads,
        )
        for row in range(heads * tokens)
    }
    assert len(places) == heads * tokens
    inner = "HEAD_ROWS" if shape["layout"] == "NHD" else "TOKEN_ROWS"
    assert made.constant(inner) == 1
    assert made.constant("TILE_ROWS") * made.constant("PARTS") >= heads * tokens


@given(shapes, st.sampled_from(["bf16", "fp32"]))
@settings(max_examples=60, deadline=None)
def test_triton_tiles_fit_registers(shape: dict[str, Any], dtype: str) -> None:
    types = {"dtype_query": dtype, "dtype_kv": dtype, "dtype_out": dtype}
    for kernel in ("write_kv", "copy_blocks"):
        made = plan(kernel, "triton", shape, **types)
        rows, width = made.constant("TILE_ROWS"), 4 if dtype == "fp32" else 2
        padded = [made.constant(f"{name}_PADDED") for name in ("HEAD_DIM", "HEAD_DIM_V")]
        assert rows & (rows - 1) == 0
        registers = rows * sum(padded) * width // 4 // made.num_threads
        assert registers <= 64, (kernel, rows)


def test_llama_has_four_loads_in_flight_in_each_thread() -> None:
    spec = specimen(num_kv_heads=8, num_q_heads=32, head_dim=128, head_dim_v=128, block_size=16)
    mover = write_tile(spec, tile_tokens(spec))
    assert (tile_tokens(spec), mover.num_threads, mover.items, mover.passes) == (4, 256, (2, 2), 1)


def test_more_heads_than_a_block_holds_take_several_passes() -> None:
    spec = specimen(num_kv_heads=1024, num_q_heads=1024, head_dim=256, head_dim_v=256)
    mover = write_tile(spec, tile_tokens(spec))
    assert mover.num_threads == MAX_THREADS and mover.passes == prod((1024, 32)) // 4 // MAX_THREADS


@pytest.mark.parametrize("dim", range(32, 257, 8))
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_merged_row_belongs_to_one_warp(dim: int, dtype: str) -> None:
    spec = specimen(head_dim_v=dim, dtype_query=dtype, dtype_kv=dtype, dtype_out=dtype)
    found = {row.name: int(row.value) for row in merge_constants(spec, "cuda")}
    assert 32 % found["LANES"] == 0
    assert found["LANES"] * found["LANE_VECTORS"] >= ceil(dim / found["VECTOR"])
    assert found["TILE_ROWS"] * found["LANES"] == found["NUM_THREADS"]


def test_reasons_are_given() -> None:
    for made in lower(specimen(kernels=("write_kv", "copy_blocks"), backends=("cuda", "triton"))):
        sized = [row for row in made.constants if row.name in ("TILE_TOKENS", "PARTS", "K_ITEMS")]
        assert sized and all(row.reason for row in sized)


@pytest.mark.parametrize("backend", ["cuda", "triton"])
@pytest.mark.parametrize("kernel", ["write_kv", "copy_blocks", "merge_states"])
def test_offsets_are_formed_in_64_bits(backend: str, kernel: str) -> None:
    """Strides are 64-bit arguments, and what they are multiplied by is widened where it is not."""
    made = plan_of(specimen(backends=(backend,)), kernel, backend)
    for row in made.params:
        assert row.type == "i64" or "stride" not in row.name
    text = emit(made, "specimen.yaml").text
    if backend == "cuda":
        assert "int stride" not in text and "unsigned stride" not in text
        assert "long long" in text
    else:
        assert "int64" in text
