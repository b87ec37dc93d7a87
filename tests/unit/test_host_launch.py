"""The fast path of a generated package: what it packs, when it checks again, and what it shares.

The GPU is pretended: launches of CPU tensors are recorded just before the driver.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host_package import (
    Call,
    PretendedGpu,
    add_cubins,
    import_package,
    make_call,
    pretend_gpu,
    submodule,
    write_package,
)
from tests.specimens import specimen

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packages")
    add_cubins(write_package(root, specimen()))
    add_cubins(write_package(root, specimen(name="by_rows", lookup="csr", window=6)))
    return root


@pytest.fixture
def ops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return import_package(folder / "specimen", monkeypatch)


@pytest.fixture
def gpu(ops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    return pretend_gpu(ops, monkeypatch)


@pytest.fixture
def call() -> Call:
    return make_call()


def new_out() -> torch.Tensor:
    return torch.zeros(3, 4, 32, dtype=BF16)


# ---- what is packed


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_every_argument_of_decode_reaches_the_kernel(
    ops: ModuleType, gpu: PretendedGpu, call: Call, backend: str
) -> None:
    out, lse = new_out(), torch.zeros(3, 4)
    workspace = torch.zeros(ops.workspace_bytes(3, 2), dtype=torch.uint8)
    pool = torch.zeros(8, 2, 4, 2, 32, dtype=BF16)
    case = replace(call, k_cache=pool[:, 0], v_cache=pool[:, 1])
    gpu.backend = backend
    ops.decode(*case.decode, out=(out, lse), return_lse=True, num_splits=2, workspace=workspace, sm_scale=0.25)
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
    assert (gpu.last.grid, gpu.last.threads, gpu.last.smem, gpu.last.stream) == (3 * 2 * tiles * 2, 128, 1024, 7)


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
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = import_package(folder / "by_rows", monkeypatch)
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
    params = (("a", "ptr", "bf16"), ("b", "ptr", "i32"), ("c", "i64", ""), ("d", "f32", ""), ("e", "i32", ""))
    arguments = launch.Arguments(params, backend == "triton")
    packed = arguments.pack("op", {"a": 2**64 - 1, "c": -(2**63), "d": 0.125, "e": 2**31 - 1})
    # Natural alignment; an absent pointer is null, a float is four bytes.
    assert packed[:32] == (
        b"\xff" * 8 + b"\0" * 8 + b"\0" * 7 + b"\x80" + b"\0\0\0\x3e" + b"\xff\xff\xff\x7f"
    )  # fmt: skip
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
    values = submodule(ops, "checks").strides("k", torch.empty(2, 4, device="meta").as_strided((2, 4), (2**33, 1)), "block")
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
    kernel = gpu.load(gpu.choose("copy_blocks", torch.device("cpu"), None, None), torch.device("cpu"))
    assert kernel.entry is entry
    with pytest.raises(ops.ArgumentError, match="needs 2147483648 thread blocks"):
        launch.Launch("copy_blocks", kernel, ("k_cache", "v_cache", "src_to_dst"), 2**31, {})
    with pytest.raises(ops.PackageError, match="host code gives"):
        launch.Launch("copy_blocks", kernel, ("k_cache",), 1, {"num_pairs": 1})


# ---- when it checks again


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


def test_alignment_is_checked_at_every_call(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    ops.decode(*call.decode)
    room = torch.zeros(call.q.numel() + 8, dtype=BF16)
    shifted = room[1 : 1 + call.q.numel()].view(call.q.shape)
    with pytest.raises(ops.ArgumentError, match="q must start at a multiple of 16 bytes, but it starts 2 bytes past"):
        ops.decode(shifted, *call.decode[1:])
    with pytest.raises(ops.ArgumentError, match="k_cache must start at"):
        ops.write_kv(call.q[:, :2], call.q[:, :2], shifted_cache(call), call.v_cache, torch.arange(3))
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


# ---- scratch


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
    with pytest.raises(ops.ArgumentError, match=r"workspace must have 26112 bytes for 3 sequences in 16 parts"):
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
    assert splits(1, 8192) == 33, "one wave: 8 * 33 of 264"
    assert splits(64, 8192) == 1, "enough sequences"
    assert splits(1, 1_000_000) <= 256


@pytest.fixture(scope="module")
def splits_module(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        return submodule(import_package(folder / "specimen", patch), "splits")


# ---- threads, contexts, capture


def test_threads_never_share_a_frame(ops: ModuleType, gpu: PretendedGpu, call: Call) -> None:
    ops.decode(*call.decode)
    launch = submodule(ops, "decode_first").MEMO.recent
    entered, release = threading.Event(), threading.Event()
    original = gpu.launchKernel

    def slow(*arguments: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            release.wait(10)
        original(*arguments)

    start = launch.start.func
    assert start == original
    launch.start = type(launch.start)(slow, *launch.start.args)
    outs = [new_out(), new_out()]
    ops.decode(*call.decode, out=outs[0])
    recent = submodule(ops, "decode_first").MEMO.recent
    recent.start = type(recent.start)(slow, *recent.start.args)
    other = threading.Thread(target=lambda: ops.decode(*call.decode, out=outs[1]))
    other.start()
    assert entered.wait(10)
    ops.decode(*call.decode, out=outs[0])
    release.set()
    other.join()
    sent = [launched.arguments["out"] for launched in gpu.launches[-2:]]
    assert sent == [outs[0].data_ptr(), outs[1].data_ptr()]
    assert len(recent.frames) == 2


def test_a_thread_without_a_context_gets_one(
    ops: ModuleType, gpu: PretendedGpu, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[int] = []

    class Runtime:
        setDevice = staticmethod(bound.append)  # noqa: N815 - CuPy's name

    monkeypatch.setitem(sys.modules, "cupy.cuda.runtime", Runtime)
    for function, arguments in ((ops.decode, call.decode), (ops.prefill, call.prefill)):
        gpu.errors.append(RuntimeError("CUDA_ERROR_INVALID_CONTEXT: invalid device context"))
        function(*arguments)
    assert bound == [0, 0] and len(gpu.launches) == 2
    gpu.errors.append(RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument"))
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        ops.decode(*call.decode)


def test_tensors_of_another_device_are_launched_there(
    ops: ModuleType, gpu: PretendedGpu, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Guard:
        def __init__(self, device: int) -> None:
            seen.append(device)

        def __enter__(self) -> None:
            seen.append("in")

        def __exit__(self, *error: object) -> None:
            seen.append("out")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    ops.decode(*call.decode)
    assert seen == [0, "in", "out"]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    ops.decode(*call.decode)
    assert len(seen) == 3 and len(gpu.launches) == 2


def test_a_checked_variant_waits_and_is_not_remembered(
    ops: ModuleType, gpu: PretendedGpu, call: Call
) -> None:
    for _ in range(2):
        ops.decode(*call.decode, variant="checked")
        assert gpu.last.arguments["fault"] and gpu.last.arguments["num_blocks"] == 8
    assert len(gpu.handles) == 2
    assert submodule(ops, "decode_first").MEMO.recent.options is None
