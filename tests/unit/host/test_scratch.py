"""Split counts and the scratch they need: closed forms, shared by stream, never too small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.host_package import (
    Call,
    PretendedGpu,
    import_package,
    submodule,
)

BF16 = torch.bfloat16


def test_calls_on_one_stream_share_a_workspace_that_only_grows(
    ops: ModuleType, gpu: PretendedGpu, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = submodule(ops, "workspace").Scratch
    made: list[int] = []

    def new(num_bytes: int, device: torch.device) -> Any:
        made.append(num_bytes)
        return scratch.over(torch.zeros(num_bytes, dtype=torch.uint8))

    monkeypatch.setattr(scratch, "new", new)
    for num_splits in (2, 64, 2, 64, 3):
        ops.decode(*call.decode, num_splits=num_splits)
    assert made == [ops.workspace_bytes(3, 2), ops.workspace_bytes(3, 64)]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(2):
        ops.decode(*call.decode, num_splits=2)
    assert len(made) == 4, "captured calls share nothing"
    ops.decode(*call.decode, num_splits=1)
    assert len(made) == 4 and gpu.last.arguments["arrivals"] == 0


def test_a_small_workspace_means_fewer_splits_or_an_error(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    def splits(workspace: torch.Tensor, **options: Any) -> int | float:
        ops.decode(*call.decode, workspace=workspace, **options)
        return gpu.last.arguments["num_splits"]

    wide = replace(call, block_table=torch.zeros(3, 4096, dtype=torch.int32))
    ops.decode(*wide.decode)
    assert gpu.last.arguments["num_splits"] > 6
    ops.decode(*wide.decode, workspace=torch.zeros(ops.workspace_bytes(3, 5), dtype=torch.uint8))
    assert gpu.last.arguments["num_splits"] == 5
    assert splits(torch.zeros(64, dtype=torch.uint8)) == 1
    assert splits(torch.zeros(ops.workspace_bytes(3, 5) // 4), num_splits=5) == 5
    with pytest.raises(
        ops.ArgumentError, match=r"workspace must have 26112 bytes for 3 sequences in 16 parts"
    ):
        splits(torch.zeros(1000, dtype=torch.uint8), num_splits=16)


@given(
    calls=st.lists(st.tuples(st.integers(1, 300), st.integers(2, 256)), min_size=1, max_size=6),
    slack=st.integers(0, 5000),
)
@settings(max_examples=200, deadline=None)
def test_the_regions_never_overlap_and_the_counters_stay_put(
    splits_module: Any, calls: list[tuple[int, int]], slack: int
) -> None:
    heads, dim = 4, 32
    num_bytes = max(splits_module.workspace_bytes(*one) for one in calls) + slack
    region = splits_module.region_bytes(num_bytes)
    for num_seqs, num_splits in calls:
        lse = 4 * num_seqs * num_splits * heads
        counters = 4 * num_seqs * heads  # at most: a tile for each query head
        assert counters <= region and lse <= region and region % 256 == 0
        assert 2 * region + dim * lse <= num_bytes
        assert splits_module.fitting_splits(num_seqs, num_bytes) >= num_splits


@given(
    num_seqs=st.integers(0, 70000),
    max_seq_len=st.integers(0, 2_000_000),
    slots=st.integers(1, 1000),
    least=st.integers(16, 512),
)
@settings(max_examples=300, deadline=None)
def test_split_counts_are_legal_and_useful(
    splits_module: Any, num_seqs: int, max_seq_len: int, slots: int, least: int
) -> None:
    got = splits_module.choose_splits(
        num_seqs, max_seq_len, slots=slots, group_tiles=1, min_split_tokens=least
    )
    assert 1 <= got <= 256
    assert got == 1 or (got - 1) * least < max_seq_len


def test_splits_fill_the_gpu_and_no_more(splits_module: Any) -> None:
    def splits(num_seqs: int, max_seq_len: int) -> int:
        return int(
            splits_module.choose_splits(
                num_seqs, max_seq_len, slots=264, group_tiles=4, min_split_tokens=128
            )
        )

    assert splits(1, 100) == 1, "too short to cut"
    assert 22 <= splits(1, 131072) <= 33, "two thirds of a wave or more: 8 blocks a part, 264 slots"
    assert splits(64, 8192) == 1, "enough sequences: 512 blocks, nearly two waves"
    assert splits(36, 8192) > 1, "288 blocks are a wave and a little: smaller ones waste less"
    assert splits(1, 1_000_000) <= 256


@pytest.fixture(scope="module")
def splits_module(packages: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        return submodule(import_package(packages / "specimen", patch), "splits")
