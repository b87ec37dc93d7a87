"""What a launch is given: every argument, packed as the C type the kernel declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.host_package import (
    Call,
    PretendedGpu,
    import_package,
    make_call,
    new_out,
    pretend_gpu,
    submodule,
)
from tests.specimens import specimen

BF16 = torch.bfloat16


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_every_argument_of_decode_reaches_the_kernel(
    ops: ModuleType, gpu: PretendedGpu, call: Call, backend: str
) -> None:
    out, lse = new_out(), torch.zeros(3, 4)
    workspace = torch.zeros(ops.workspace_bytes(3, 2), dtype=torch.uint8)
    pool = torch.zeros(8, 2, 4, 2, 32, dtype=BF16)
    case = replace(call, k_cache=pool[:, 0], v_cache=pool[:, 1])
    gpu.backend = backend
    ops.decode(
        *case.decode,
        out=(out, lse),
        return_lse=True,
        num_splits=2,
        workspace=workspace,
        sm_scale=0.25,
    )
    region = 256 * -(-4 * 3 * 2 * 4 // 256)
    assert gpu.last.arguments == {
        "out": out.data_ptr(),
        "lse": lse.data_ptr(),
        "q": call.q.data_ptr(),
        "k_cache": pool.data_ptr(),
        "v_cache": pool[:, 1].data_ptr(),
        "block_table": call.block_table.data_ptr(),
        "seq_lens": call.seq_lens.data_ptr(),
        "arrivals": workspace.data_ptr(),
        "partial_lse": workspace.data_ptr() + region,
        "partial_out": workspace.data_ptr() + 2 * region,
        "out_stride_seq": 128,
        "out_stride_head": 32,
        "q_stride_seq": 128,
        "q_stride_head": 32,
        "k_cache_stride_block": 512,
        "k_cache_stride_token": 64,
        "k_cache_stride_head": 32,
        "v_cache_stride_block": 512,
        "v_cache_stride_token": 64,
        "v_cache_stride_head": 32,
        "block_table_stride_seq": 4,
        "sm_scale": 0.25,
        "num_seqs": 3,
        "num_splits": 2,
        "write_lse": 1,
    }
    tiles = gpu.handles[0].constants["GROUP_TILES"]
    assert (gpu.last.grid, gpu.last.threads, gpu.last.smem, gpu.last.stream) == (
        3 * 2 * tiles * 2,
        128,
        1024,
        7,
    )


def test_every_argument_of_prefill_reaches_the_kernel(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    out = ops.prefill(*call.prefill, max_seqlen_q=1)
    sent = gpu.last.arguments
    tile_m = gpu.handles[0].constants["TILE_M"]
    assert (sent["out"], sent["lse"], sent["write_lse"]) == (out.data_ptr(), 0, 0)
    assert sent["cu_seqlens_q"] == call.cu_seqlens_q.data_ptr()
    assert sent["num_q_tiles"] == 3 * 2 // tile_m + 3 and gpu.last.grid == 2 * sent["num_q_tiles"]
    assert sent["sm_scale"] == pytest.approx(32**-0.5) and sent["num_seqs"] == 3


def test_the_cache_ops_and_merge_reach_their_kernels(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    k = torch.zeros(9, 2, 32, dtype=BF16)
    slots = torch.arange(7)
    ops.write_kv(k, k, call.k_cache, call.v_cache, slots)
    tokens = gpu.handles[-1].constants["TILE_TOKENS"]
    assert gpu.last.grid == -(-7 // tokens) and gpu.last.arguments["num_tokens"] == 7
    assert gpu.last.arguments["slot_mapping"] == slots.data_ptr()
    pairs = torch.tensor([[0, 1], [2, 3]])
    ops.copy_blocks(call.k_cache, call.v_cache, pairs)
    assert gpu.last.grid == 2 * gpu.handles[-1].constants["PARTS"]
    assert gpu.last.arguments["src_to_dst"] == pairs.data_ptr()
    out, lse = new_out(), torch.zeros(3, 8)[:, ::2]
    merged = ops.merge_states(out, lse, out, torch.zeros(3, 4))
    sent = gpu.last.arguments
    assert (sent["lse_a_stride_token"], sent["lse_a_stride_head"]) == (8, 2)
    assert (sent["out"], sent["lse"]) == tuple(one.data_ptr() for one in merged)


def test_csr_reaches_the_kernel_as_two_pointers(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = import_package(packages / "by_rows", monkeypatch)
    gpu = pretend_gpu(ops, monkeypatch)
    call = make_call(specimen(lookup="csr"))
    for _ in range(2):
        ops.decode(*call.decode)
        ops.prefill(*call.prefill)
    for launched in gpu.launches:
        pointers = launched.arguments["kv_indptr"], launched.arguments["kv_indices"]
        assert pointers == tuple(one.data_ptr() for one in call.block_table)
    assert len(gpu.handles) == 2


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_each_c_type_is_packed_exactly_or_refused(ops: ModuleType, backend: str) -> None:
    launch = submodule(ops, "launch")
    params = (
        ("a", "ptr", "bf16"),
        ("b", "ptr", "i32"),
        ("c", "i64", ""),
        ("d", "f32", ""),
        ("e", "i32", ""),
    )
    arguments = launch.Arguments(params, backend == "triton")
    packed = arguments.pack("op", {"a": 2**64 - 1, "c": -(2**63), "d": 0.125, "e": 2**31 - 1})
    # Natural alignment; an absent pointer is null, a float is four bytes.
    assert packed[:32] == (
        b"\xff" * 8 + b"\0" * 8 + b"\0" * 7 + b"\x80" + b"\0\0\0\x3e" + b"\xff\xff\xff\x7f"
    )
    assert not any(packed[32:])
    assert arguments.fields[: 5 if backend == "triton" else 1] == (
        (0, 8, 16, 24, 28) if backend == "triton" else (0,)
    )
    good = {"a": 0, "c": 0, "d": 0.0, "e": 0}
    for bad, words in (
        ({"e": 2**31}, "e = 2147483648 does not fit in i32"),
        ({"e": -(2**31) - 1}, "does not fit in i32"),
        ({"c": 2**63}, "does not fit in i64"),
        ({"a": -1}, "does not fit in ptr"),
        ({"a": 2**64}, "does not fit in ptr"),
        ({"e": 1.0}, "e must be an int, but it is 1.0"),
        ({"e": True}, "e must be an int, but it is True"),
        ({"d": float("inf")}, "d must be a finite 32-bit float"),
        ({"d": 1e39}, "d must be a finite 32-bit float"),
    ):
        with pytest.raises(ops.ArgumentError, match=words):
            arguments.pack("op", {**good, **bad})
    with pytest.raises(ops.PackageError, match="op takes 'e', which this host code lacks"):
        arguments.pack("op", {"a": 0, "c": 0, "d": 0.0})


def test_a_stride_past_32_bits_is_kept(ops: ModuleType, gpu: PretendedGpu, call: Call) -> None:
    far = torch.empty(256, dtype=BF16).as_strided((2, 4, 2, 32), (0, 64, 32, 1))
    case = replace(call, k_cache=far, v_cache=far)
    ops.decode(*case.decode)
    assert gpu.last.arguments["k_cache_stride_block"] == 0
    values = submodule(ops, "checks").strides(
        "k", torch.empty(2, 4, device="meta").as_strided((2, 4), (2**33, 1)), "block"
    )
    assert values == {"k_stride_block": 2**33}


def test_a_stride_that_is_never_taken_may_be_anything(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    one = call.q.as_strided((1, 4, 32), (7, 32, 1))
    case = replace(call, q=one, seq_lens=call.seq_lens[:1], block_table=call.block_table[:1])
    ops.decode(*case.decode)
    assert gpu.last.arguments["q_stride_seq"] == 0


def test_a_grid_past_the_limit_is_refused(ops: ModuleType, gpu: PretendedGpu, call: Call) -> None:
    launch = submodule(ops, "launch")
    entry = submodule(ops, "package").entries()["copy_blocks", "cuda", "default"]
    kernel = gpu.load(
        gpu.choose("copy_blocks", torch.device("cpu"), None, None), torch.device("cpu")
    )
    assert kernel.entry is entry
    with pytest.raises(ops.ArgumentError, match="needs 2147483648 thread blocks"):
        launch.Launch("copy_blocks", kernel, ("k_cache", "v_cache", "src_to_dst"), 2**31, {})
    with pytest.raises(ops.PackageError, match="host code gives"):
        launch.Launch("copy_blocks", kernel, ("k_cache",), 1, {"num_pairs": 1})
