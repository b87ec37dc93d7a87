"""The host side on a real GPU: streams, graphs, devices, threads, scratch, faults, and its cost."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pagegen
from pagegen.build import Package, build
from pagegen.emit import emit, emit_package
from pagegen.lower import lower
from pagegen.runtime.device import device as device_facts
from tests.host_package import Call, make_call, submodule
from tests.specimens import specimen

BF16 = torch.bfloat16
MAX_COST = 1.6  # of decode with out= and workspace=, in bare launches of the same kernel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """specimen(), built for the GPU at hand."""
    facts = device_facts()
    arch = "sm_90a" if facts.capability == (9, 0) else facts.arch
    spec = specimen(archs=(arch,), name="on_gpu")
    plans = lower(spec)
    kernels = tuple(emit(plan, spec.file_name) for plan in plans)
    package = Package(spec, plans, kernels, emit_package(spec, plans, kernels))
    return build(package, tmp_path_factory.mktemp("packages")).folder


@pytest.fixture(scope="module", params=["cuda", "triton"])
def ops(folder: Path, request: pytest.FixtureRequest) -> Any:
    loaded = pagegen.load(folder, backend=request.param)
    loaded.warm_up()
    return loaded


@pytest.fixture
def call() -> Call:
    return on(make_call(), "cuda")


def on(call: Call, place: str) -> Call:
    return Call(*(getattr(call, name).to(place) for name in Call.__dataclass_fields__))


def expected(folder: Path, call: Call) -> torch.Tensor:
    out: torch.Tensor = pagegen.load(folder, backend="torch").decode(*call.decode)
    return out


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool((got.float() - want.float()).norm() <= 1e-2 * want.float().norm())


def test_nothing_waits_and_nothing_is_allocated(ops: Any, folder: Path, call: Call) -> None:
    out = torch.zeros(3, 4, 32, dtype=BF16, device="cuda")
    workspace = torch.zeros(ops.workspace_bytes(3, 4), dtype=torch.uint8, device="cuda")
    ops.decode(*call.decode, out=out, workspace=workspace, num_splits=4)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            ops.decode(*call.decode, out=out, workspace=workspace, num_splits=4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert close(out, expected(folder, call))
    counters = submodule(ops.module, "splits").region_bytes(workspace.nbytes)
    assert not workspace[:counters].any(), "arrival counters are zero again"


def test_launches_follow_torchs_stream(ops: Any, folder: Path, call: Call) -> None:
    want = expected(folder, call)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(50):
            q = torch.zeros_like(call.q)
            torch.cuda._sleep(200_000)  # type: ignore[no-untyped-call]
            q.copy_(call.q)
            got = ops.decode(q, *call.decode[1:]).clone()
            q.zero_()
    stream.synchronize()
    assert close(got, want)


def test_graphs_replay_with_new_lengths_and_share_no_scratch(
    ops: Any, folder: Path, call: Call
) -> None:
    outs = [torch.zeros(3, 4, 32, dtype=BF16, device="cuda") for _ in range(2)]
    graphs = [torch.cuda.CUDAGraph() for _ in outs]
    for graph, out in zip(graphs, outs, strict=True):
        with torch.cuda.graph(graph):
            ops.decode(*call.decode, out=out, num_splits=4)
    streams = [torch.cuda.Stream() for _ in graphs]  # type: ignore[no-untyped-call]
    for lens in ([1, 16, 7], [0, 0, 0], [16, 16, 16]):
        call.seq_lens.copy_(torch.tensor(lens))
        want = expected(folder, call)
        torch.cuda.synchronize()
        for _ in range(20):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for out in outs:
            assert close(out, want)


def test_a_capture_before_loading_asks_for_warm_up_and_stays_valid(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = pagegen.load(folder, backend="cuda")
    monkeypatch.setattr(submodule(ops.module, "kernels").LOADED, "_loaded", {})
    graph = torch.cuda.CUDAGraph()
    out = torch.zeros(3, device="cuda")
    with torch.cuda.graph(graph):
        with pytest.raises(ops.DeviceError, match="warm_up"):
            ops.decode(*call.decode, sm_scale=0.123)
        out += 1
    graph.replay()
    assert out.tolist() == [1, 1, 1]


def test_a_new_thread_may_launch_first(ops: Any, folder: Path, call: Call) -> None:
    want = expected(folder, call)
    out = torch.zeros(3, 4, 32, dtype=BF16, device="cuda")
    ops.decode(*call.decode, out=out)
    torch.cuda.synchronize()
    out.zero_()
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            ops.decode(*call.decode, out=out)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures and close(out, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_the_other_gpu_are_launched_there(ops: Any, folder: Path) -> None:
    call = on(make_call(), "cuda:1")
    for _ in range(2):
        got = ops.decode(*call.decode, num_splits=3)
    assert got.device.index == 1 and torch.cuda.current_device() == 0
    assert close(got, expected(folder, call))


def test_checked_variants_name_the_fault(ops: Any, call: Call) -> None:
    ops.decode(*call.decode, variant="checked")
    call.block_table[2, 1] = 99
    with pytest.raises(ops.KernelFault, match="block id 99 in row 2, column 1"):
        ops.decode(*call.decode, variant="checked")
    k = torch.zeros(2, 2, 32, dtype=BF16, device="cuda")
    slots = torch.tensor([0, 32], device="cuda")
    with pytest.raises(ops.KernelFault, match=r"slot_mapping\[1\]"):
        ops.write_kv(k, k, call.k_cache, call.v_cache, slots, variant="checked")


def test_tensors_on_the_wrong_device_are_named(ops: Any, call: Call) -> None:
    with pytest.raises(
        ops.ArgumentError, match="seq_lens must be on cuda:0 like q, but it is on cpu"
    ):
        ops.decode(*call.decode[:4], call.seq_lens.cpu())


def test_a_call_costs_little_more_than_a_bare_launch(folder: Path, call: Call) -> None:
    import numpy as np
    from cupy.cuda.function import Module

    ops = pagegen.load(folder).module
    out = torch.zeros(3, 4, 32, dtype=BF16, device="cuda")
    workspace = torch.zeros(ops.workspace_bytes(3, 2), dtype=torch.uint8, device="cuda")

    def whole() -> None:
        ops.decode(*call.decode, out=out, workspace=workspace, num_splits=2)

    whole()
    launch = submodule(ops, "decode_first").MEMO.recent
    _, grid, _, _, threads, _, _, smem = launch.start.args
    packaged = submodule(ops, "package")
    entry = packaged.entries()["decode", "cuda", "default"]
    facts = device_facts()
    artifact = packaged.artifact_for(entry, facts.capability)
    module = Module()
    module.load(packaged.cubin(artifact))
    kernel = module.get_function(artifact.entry)
    image = bytes(launch.frames[0][0])
    struct = np.frombuffer(image, dtype=np.dtype((np.void, len(image)))).reshape(())

    def bare() -> None:
        kernel((grid,), (threads,), (struct,), smem)

    def microseconds(run: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            run()
        spent = time.perf_counter() - begin
        torch.cuda.synchronize()
        return spent * 2000

    bare()
    whole()
    pairs = [(microseconds(bare), microseconds(whole)) for _ in range(15)]
    cost = statistics.median(mine / base for base, mine in pairs)
    base, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"decode call {mine:.2f} us, bare launch {base:.2f} us, ratio {cost:.2f}")
    assert cost <= MAX_COST
