"""Launches from many threads, on other devices, without a context, and checked ones."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
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
        setDevice = staticmethod(bound.append)

    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(runtime=Runtime))
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
