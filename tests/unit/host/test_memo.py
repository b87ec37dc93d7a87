"""When a call is served by an earlier one, and when it is checked again."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.host_package import (
    Call,
    PretendedGpu,
    new_out,
    submodule,
)

BF16 = torch.bfloat16


def changed_calls(call: Call) -> dict[str, Call]:
    """Calls that look almost like `call`."""
    wide = torch.zeros(3, 4, 64, dtype=BF16)
    pool = torch.zeros(8, 2, 4, 2, 32, dtype=BF16)
    return {
        "dtype": replace(call, q=call.q.half()),
        "shape": replace(call, q=call.q[:2]),
        "table": replace(call, block_table=call.block_table.long()),
        "rank": replace(call, seq_lens=call.seq_lens[None]),
        "odd stride": replace(call, q=wide[..., :32].as_strided((3, 4, 32), (132, 33, 1))),
        "blocks": replace(call, v_cache=pool[:7, 1]),
    }


@pytest.mark.parametrize("what", ["dtype", "shape", "table", "rank", "odd stride", "blocks"])
def test_a_call_that_differs_is_checked_after_a_hit(
    ops: ModuleType, gpu: PretendedGpu, call: Call, what: str
) -> None:
    out = new_out()
    for _ in range(3):
        ops.decode(*call.decode, out=out)
    with pytest.raises(ops.ArgumentError):
        ops.decode(*changed_calls(call)[what].decode, out=out)
    ops.decode(*call.decode, out=out)
    assert len(gpu.launches) == 4 and len(gpu.handles) == 1


def test_metadata_changed_in_place_is_noticed(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    ops.decode(*call.decode)
    call.q.resize_(3, 4, 16)
    with pytest.raises(ops.ArgumentError, match="q must have shape"):
        ops.decode(*call.decode)


def test_new_strides_are_packed_anew(ops: ModuleType, gpu: PretendedGpu, call: Call) -> None:
    pool = torch.zeros(8, 2, 4, 2, 32, dtype=BF16)
    other = replace(call, k_cache=pool[:, 0], v_cache=pool[:, 1])
    strides = []
    for case in (call, other, call, other):
        ops.decode(*case.decode)
        strides.append(gpu.last.arguments["k_cache_stride_block"])
        assert gpu.last.arguments["k_cache"] == case.k_cache.data_ptr()
    assert strides == [256, 512, 256, 512]
    assert len(gpu.handles) == 2, "the second time round nothing is prepared again"


@pytest.mark.parametrize(
    "options",
    [
        {"sm_scale": 0.5},
        {"return_lse": True},
        {"num_splits": 4},
        {"out": new_out()},
        {"workspace": torch.zeros(1 << 16, dtype=torch.uint8)},
        {"backend": "triton"},
    ],
)
def test_every_option_is_part_of_what_a_launch_serves(
    ops: ModuleType, gpu: PretendedGpu, call: Call, options: dict[str, Any]
) -> None:
    ops.decode(*call.decode)
    ops.decode(*call.decode, **options)
    ops.decode(*call.decode, **options)
    assert len(gpu.handles) == 2
    with pytest.raises(ops.ArgumentError, match="k_scale"):
        ops.decode(*call.decode, **options, k_scale=2.0)


def test_alignment_is_checked_at_every_call(ops: ModuleType, gpu: PretendedGpu, call: Call) -> None:
    ops.decode(*call.decode)
    room = torch.zeros(call.q.numel() + 8, dtype=BF16)
    shifted = room[1 : 1 + call.q.numel()].view(call.q.shape)
    with pytest.raises(
        ops.ArgumentError,
        match="q must start at a multiple of 16 bytes, but it starts 2 bytes past",
    ):
        ops.decode(shifted, *call.decode[1:])
    with pytest.raises(ops.ArgumentError, match="k_cache must start at"):
        ops.write_kv(
            call.q[:, :2], call.q[:, :2], shifted_cache(call), call.v_cache, torch.arange(3)
        )
    assert len(gpu.launches) == 1


def shifted_cache(call: Call) -> torch.Tensor:
    room = torch.zeros(call.k_cache.numel() + 8, dtype=BF16)
    return room[4 : 4 + call.k_cache.numel()].view(call.k_cache.shape)


def test_metadata_tensors_may_start_anywhere(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    lens = torch.zeros(4, dtype=torch.int32)[1:]
    table = torch.zeros(3, 9, dtype=torch.int32)[:, 1:5]
    ops.decode(*replace(call, seq_lens=lens, block_table=table).decode)
    assert gpu.last.arguments["seq_lens"] % 16 == 4


def test_without_torchs_guards_nothing_changes_but_speed(
    ops: ModuleType, gpu: PretendedGpu, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submodule(ops, "memo"), "tensor_guards", lambda: None)
    for _ in range(3):
        ops.decode(*call.decode)
    assert len(gpu.launches) == 3 and len(gpu.handles) == 1
    with pytest.raises(ops.ArgumentError, match="q must be"):
        ops.decode(call.q.half(), *call.decode[1:])


def test_the_guards_of_this_torch_notice_every_change(ops: ModuleType) -> None:
    assert submodule(ops, "memo").tensor_guards() is not None


def test_the_memo_forgets_before_it_grows_without_end(
    ops: ModuleType, gpu: PretendedGpu, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submodule(ops, "memo"), "MAX_LAUNCHES", 4)
    memo = submodule(ops, "decode_first").MEMO
    for scale in range(1, 12):
        ops.decode(*call.decode, sm_scale=float(scale))
        assert gpu.last.arguments["sm_scale"] == scale and len(memo._launches) <= 4
