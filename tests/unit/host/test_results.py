"""What calls return: empty batches, given results, faults of checked variants."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from tests.host_package import Call

BF16 = torch.bfloat16


def test_an_empty_batch_returns_empty_results(ops: ModuleType, call: Call) -> None:
    none = replace(
        call,
        q=call.q[:0],
        seq_lens=call.seq_lens[:0],
        block_table=call.block_table[:0],
        cu_seqlens_q=call.cu_seqlens_q[:1],
    )
    for result in (
        ops.decode(*none.decode, return_lse=True),
        ops.prefill(*none.prefill, return_lse=True),
    ):
        assert result[0].shape == (0, 4, 32) and result[1].shape == (0, 4)
    states = torch.zeros(0, 4, 32, dtype=BF16), torch.zeros(0, 4)
    assert ops.merge_states(*states, *states)[0].shape == (0, 4, 32)
    ops.copy_blocks(call.k_cache, call.v_cache, torch.zeros(0, 2, dtype=torch.int64))
    rows = torch.zeros(0, 2, 32, dtype=BF16)
    ops.write_kv(rows, rows, call.k_cache, call.v_cache, torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("function", ["decode", "prefill"])
def test_a_table_without_columns_shows_nothing(ops: ModuleType, call: Call, function: str) -> None:
    bare = replace(call, block_table=call.block_table[:, :0])
    out = torch.full((3, 4, 32), float("nan"), dtype=BF16)
    arguments = getattr(bare, function)
    result, lse = getattr(ops, function)(*arguments, out=out, return_lse=True)
    assert result is out and not out.any()
    assert bool((lse == float("-inf")).all())


def test_results_are_written_where_the_call_says(ops: ModuleType, call: Call) -> None:
    expected, expected_lse = ops.decode(*call.decode, return_lse=True)
    out, lse = torch.zeros(3, 4, 32, dtype=BF16), torch.zeros(3, 4)
    assert ops.decode(*call.decode, out=out) is out and torch.equal(out, expected)
    got = ops.decode(*call.decode, out=(out, lse), return_lse=True)
    assert got[0] is out and got[1] is lse and torch.equal(lse, expected_lse)
    assert ops.decode(*call.decode, out=out, return_lse=True)[0] is out
    merged = ops.merge_states(out, lse, out, lse, out=(out, lse))
    assert merged[0] is out and merged[1] is lse


def test_a_checked_variant_names_row_and_column(ops: ModuleType, call: Call) -> None:
    table = call.block_table.clone()
    table[2, 1] = 99
    bad = replace(call, block_table=table)
    with pytest.raises(ops.KernelFault, match="block id 99 in row 2, column 1") as caught:
        ops.decode(*bad.decode, variant="checked")
    assert (caught.value.kind, caught.value.row, caught.value.column, caught.value.value) == (
        1,
        2,
        1,
        99,
    )
    call.q[0, 1, 3] = float("nan")
    with pytest.raises(ops.KernelFault, match="NaN in q, row 0"):
        ops.decode(*call.decode, variant="checked")
    k = torch.zeros(2, 2, 32, dtype=BF16)
    with pytest.raises(ops.KernelFault, match=r"slot_mapping\[1\] is past the cache's last slot"):
        ops.write_kv(k, k, call.k_cache, call.v_cache, torch.tensor([0, 32]), variant="checked")


def test_cpu_tensors_are_refused_by_gpu_backends(ops: ModuleType, call: Call) -> None:
    with pytest.raises(ops.DeviceError, match="the tensors are on a CPU, where cuda cannot run"):
        ops.decode(*call.decode, backend="cuda")
    with pytest.raises(ops.ArgumentError, match="must be cuda or cpu, but the tensors are on meta"):
        ops.copy_blocks(
            call.k_cache.to("meta"),
            call.v_cache.to("meta"),
            torch.zeros(1, 2, dtype=torch.int64, device="meta"),
        )


def test_the_kernels_folder_called_torch_hides_nothing(ops: ModuleType, call: Call) -> None:
    """Importing a kernel of torch/ gives the package an attribute of that name."""
    ops.decode(*call.decode)
    assert ops.num_splits(2, 4096, device="cpu") == 1
