"""Which kernel a call gets: by device, by what was built, by what driver and capture allow."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.host_package import add_cubins, entry_of, import_package, submodule


@dataclass
class Facts:
    name: str = "NVIDIA Pretended"
    major: int = 9
    minor: int = 0


def choices(ops: ModuleType, monkeypatch: pytest.MonkeyPatch, facts: Facts, **options: Any) -> Any:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    wanted = {"backend": None, "variant": None, **options}
    return submodule(ops, "backends").choose("decode", torch.device("cuda", 0), **wanted)


def test_a_gpu_gets_cuda_then_triton_then_tritons_jit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_cubins(folder, "sm_90")
    ops = import_package(folder, monkeypatch)
    first = choices(ops, monkeypatch, Facts())
    assert (first.entry.backend, first.artifact.arch) == ("cuda", "sm_90")
    named = choices(ops, monkeypatch, Facts(), backend="triton", variant="checked")
    assert (named.entry.backend, named.entry.variant) == ("triton", "checked") and named.artifact
    elsewhere = choices(ops, monkeypatch, Facts(major=8))
    assert elsewhere.entry.backend == "triton" and elsewhere.artifact is None
    plain = choices(ops, monkeypatch, Facts(major=8), backend="torch")
    assert plain.entry.backend == "torch"


def test_a_gpu_that_no_cubin_fits_is_told_what_to_build(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_cubins(folder, "sm_90a")
    ops = import_package(folder, monkeypatch)
    monkeypatch.setattr(submodule(ops, "backends").importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ops.DeviceError) as caught:
        choices(ops, monkeypatch, Facts(major=8, minor=9))
    assert str(caught.value) == (
        "decode: no kernel of no_cubins runs on NVIDIA Pretended (sm_89); cubins are built for: "
        "sm_90a\n  to fix: run `pagegen build specimen.yaml --arch sm_89`, or install triton, or "
        "use backend='torch'"
    )


@pytest.mark.parametrize(
    ("needs", "driver", "ok"),
    [
        ("13.0", 13000, True),
        ("13.0", 13050, True),
        ("12.0", 13000, True),
        ("13.0", 12090, False),
        ("13.4", 13030, False),
    ],
)
def test_a_driver_too_old_for_a_cubin_is_refused_with_the_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, needs: str, driver: int, ok: bool
) -> None:
    add_cubins(folder, driver_cuda=needs)
    ops = import_package(folder, monkeypatch)
    row = submodule(ops, "package").artifacts()[entry_of(ops).symbol][0]
    check = submodule(ops, "kernels").check_driver
    if ok:
        check(row, driver)
        return
    with pytest.raises(ops.DeviceError, match=r"needs a driver for CUDA 13.*\n.*pagegen\[cu12\]"):
        check(row, driver)


def test_loading_inside_a_capture_asks_for_warm_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_cubins(folder)
    ops = import_package(folder, monkeypatch)
    chosen = choices(ops, monkeypatch, Facts())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ops.DeviceError, match=r"call warm_up\(\) before the capture"):
        submodule(ops, "kernels").LOADED.get(chosen, torch.device("cuda", 0))


def test_without_a_gpu_or_cupy_the_error_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = import_package(folder, monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ops.DeviceError, match="torch finds no GPU"):
        ops.warm_up()
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(ops.DeviceError, match="pip install cupy-cuda13x"):
        submodule(ops, "kernels").driver()
