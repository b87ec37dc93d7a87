"""pagegen.load: a folder becomes its functions, a rebuilt folder the new ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pagegen
from pagegen.errors import DeviceError, PackageError
from pagegen.runtime.device import device
from tests.host_package import make_call, write_package
from tests.specimens import specimen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("packages"), specimen())


def test_functions_are_attributes(folder: Path) -> None:
    ops = pagegen.load(folder)
    call = make_call()
    assert ops.decode(*call.decode).shape == (3, 4, 32)
    assert ops.backends() == ("cuda", "triton", "torch")
    assert ops.facts.name == "specimen" and {"decode", "facts", "warm_up"} <= set(dir(ops))
    assert pagegen.load(str(folder)).module is ops.module
    with pytest.raises(AttributeError):
        ops.encode  # noqa: B018 - reading it is the test


def test_a_named_backend_is_every_calls_default(folder: Path) -> None:
    ops = pagegen.load(folder, backend="cuda")
    call = make_call()
    assert ops.decode is ops.decode
    with pytest.raises(ops.DeviceError, match="where cuda cannot run"):
        ops.decode(*call.decode)
    assert ops.decode(*call.decode, backend="torch").shape == (3, 4, 32)
    assert ops.workspace_bytes(1, 1) == 0


def test_a_backend_the_package_lacks_is_refused(tmp_path: Path) -> None:
    path = write_package(tmp_path, specimen(backends=("torch",)))
    with pytest.raises(PackageError, match="no backend 'cuda'") as caught:
        pagegen.load(path, backend="cuda")
    assert "allowed: torch" in str(caught.value)


def test_a_folder_that_is_no_package_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(PackageError, match=r"not a generated package.*manifest.json"):
        pagegen.load(tmp_path)
    (tmp_path / "manifest.json").write_text((folder / "manifest.json").read_text())
    with pytest.raises(PackageError, match=r"no __init__\.py"):
        pagegen.load(tmp_path)


def test_a_package_built_twice_in_a_second_runs_its_new_code(tmp_path: Path) -> None:
    call = make_call()
    old = pagegen.load(write_package(tmp_path, specimen()))
    before = old.decode(*call.decode)
    path = write_package(tmp_path, specimen(window=1))
    new = pagegen.load(path)
    assert new.module is not old.module
    after = new.decode(*call.decode)
    assert not torch.equal(before, after)
    table = call.block_table[0].long()
    last = call.v_cache[table[1], 0].repeat_interleave(2, 0)
    assert torch.allclose(after[0], last), "position 4 alone is visible"
    # The same sizes and times, other code: only the contents tell.
    source = path / "_splits.py"
    text = source.read_text()
    assert "MAX_SPLITS = 256" in text
    source.write_text(text.replace("MAX_SPLITS = 256", "MAX_SPLITS = 128"))
    with pytest.raises(ValueError, match="1 to 128"):
        pagegen.load(path).decode(*call.decode, num_splits=200)


def test_a_failed_import_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_package(tmp_path, specimen())
    good = (path / "__init__.py").read_text()
    (path / "__init__.py").write_text(good + "\nraise RuntimeError('broken')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            pagegen.load(path)
    (path / "__init__.py").write_text(good)
    assert pagegen.load(path).backends()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_device_is_an_error_with_a_remedy() -> None:
    with pytest.raises(DeviceError, match="torch finds no GPU"):
        device()
