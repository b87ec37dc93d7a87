"""Triton's write_kv, merge_states and copy_blocks under the interpreter, held to the contract."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor

from pagegen.emit import emit
from pagegen.plan import Plan
from pagegen.spec import Spec
from tests.cache_ops import Fault, make_pool, new_kv, same, token_rows
from tests.cache_ops_contract import CONTRACT, Check
from tests.interpret.harness import cache_arguments
from tests.interpret.worker import Interpreter
from tests.rendering import plan_of
from tests.specimens import specimen

BF16, FP16, FP32 = (
    {"dtype_query": name, "dtype_kv": name, "dtype_out": name} for name in ("bf16", "fp16", "fp32")
)
SPECS = {
    "nhd-bf16": specimen(backends=("triton",), **BF16),
    "hnd-fp16": specimen(
        backends=("triton",), layout="HND", block_size=24, num_kv_heads=3, num_q_heads=3, **FP16
    ),
    "dims-fp32": specimen(backends=("triton",), head_dim=40, head_dim_v=72, block_size=10, **FP32),
}


def row_strides(name: str, tensor: Tensor) -> dict[str, int]:
    """Launch arguments of a [token, head, ..] tensor."""
    return {
        f"{name}_stride_token": tensor.stride(0),
        f"{name}_stride_head": tensor.stride(1),
    }


class TritonOps:
    """The emitted kernels, launched as a host launches them."""

    def __init__(self, interpreter: Interpreter, spec: Spec, variant: str) -> None:
        self.interpreter = interpreter
        self.spec = spec
        self.variant = variant

    def _run(self, kernel: str, rows: int, per_tile: str, **values: Any) -> Fault:
        """Launch over `rows` in tiles of the constant `per_tile`; PARTS counts tiles per row."""
        plan = plan_of(self.spec, kernel, "triton", self.variant)
        size = plan.constant(per_tile)
        grid = rows * size if per_tile == "PARTS" else ceil(rows / size)
        fault = torch.zeros(4, dtype=torch.int32)
        self.interpreter.launch(plan, grid, {**values, "fault": fault})
        found = tuple(fault.tolist())
        return found if found[0] else None

    def _caches(self, k_cache: Tensor, v_cache: Tensor) -> dict[str, Any]:
        plan: Plan = plan_of(self.spec, "write_kv", "triton")
        return cache_arguments(plan, self.spec.layout, k_cache, v_cache)

    def write_kv(
        self, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor
    ) -> Fault:
        num_tokens = slot_mapping.shape[0]
        return self._run(
            "write_kv",
            num_tokens,
            "TILE_TOKENS",
            **self._caches(k_cache, v_cache),
            k=k,
            v=v,
            slot_mapping=slot_mapping,
            **row_strides("k", k),
            **row_strides("v", v),
            num_tokens=num_tokens,
            num_slots=k_cache.shape[0] * self.spec.block_size,
        )

    def merge_states(
        self,
        out: Tensor,
        lse: Tensor,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
    ) -> Fault:
        tensors = {
            "out": out,
            "lse": lse,
            "out_a": out_a,
            "lse_a": lse_a,
            "out_b": out_b,
            "lse_b": lse_b,
        }
        steps: dict[str, int] = {}
        for name, tensor in tensors.items():
            steps |= row_strides(name, tensor)
        rows = out.shape[0] * out.shape[1]
        return self._run(
            "merge_states",
            rows,
            "TILE_ROWS",
            **tensors,
            **steps,
            num_tokens=out.shape[0],
            num_rows=rows,
        )

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, src_to_dst: Tensor) -> Fault:
        num_pairs = src_to_dst.shape[0]
        return self._run(
            "copy_blocks",
            num_pairs,
            "PARTS",
            **self._caches(k_cache, v_cache),
            src_to_dst=src_to_dst,
            num_pairs=num_pairs,
            num_blocks=k_cache.shape[0],
        )


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SPECS)
def test_contract(interpreter: Interpreter, check: Check, name: str) -> None:
    spec = SPECS[name]
    ops = [TritonOps(interpreter, spec, variant) for variant in ("default", "checked")]
    check(ops[0], ops[1], spec)


def test_a_token_of_more_rows_than_a_tile_is_written_in_passes(interpreter: Interpreter) -> None:
    """As a spec with more heads than registers hold would be."""
    spec = SPECS["nhd-bf16"]
    plan = plan_of(spec, "write_kv", "triton")
    rows = tuple(
        replace(row, value=4 if row.name == "TILE_ROWS" else row.value) for row in plan.constants
    )
    plan = replace(plan, constants=rows, variant="small")
    pool, (k, v) = make_pool(spec, 3), new_kv(spec, 3)
    arguments = cache_arguments(plan, spec.layout, pool.k, pool.v)
    arguments |= {"k": k, "v": v, "slot_mapping": torch.tensor([5, -1, 0]), "num_tokens": 3}
    interpreter.launch(plan, 1, arguments | row_strides("k", k) | row_strides("v", v))
    assert same(token_rows(pool.k, spec)[1, 1], k[0]) and same(token_rows(pool.v, spec)[0, 0], v[2])


@pytest.mark.parametrize("backend", ["cuda", "triton"])
@pytest.mark.parametrize("kernel", ["write_kv", "copy_blocks", "merge_states"])
def test_offsets_are_formed_in_64_bits(backend: str, kernel: str) -> None:  # C02
    """Strides are 64-bit arguments, and what they are multiplied by is widened where it is not."""
    plan = plan_of(specimen(backends=(backend,)), kernel, backend)
    for row in plan.params:
        assert row.type == "i64" or "stride" not in row.name
    text = emit(plan, "specimen.yaml").text
    if backend == "cuda":
        assert "int stride" not in text and "unsigned stride" not in text
        assert "long long" in text
    else:
        assert "int64" in text
