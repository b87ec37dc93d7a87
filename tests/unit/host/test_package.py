"""A generated package's files: cubins that fit, what is stale or foreign, vendored copies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from pagegen.archs import ARCHS
from tests.host_package import add_cubins, entry_of, import_package, submodule, write_package
from tests.specimens import specimen

# ---- which cubin


@pytest.mark.parametrize(
    "row", [row for row in ARCHS if row.vendor == "cuda"], ids=lambda r: r.name
)
def test_the_rule_is_that_of_the_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    packaged = submodule(import_package(folder, monkeypatch), "package")
    for capability in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]:
        assert packaged.runs_on(row.name, capability) == row.runs_on(capability)


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((9, 0), "sm_90a"), ((8, 9), "sm_86"), ((8, 6), "sm_86"), ((8, 0), "sm_80"), ((12, 0), None)],
)
def test_the_most_specific_cubin_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], arch: str | None
) -> None:
    for built in ("sm_80", "sm_86", "sm_90", "sm_90a"):
        add_cubins(folder, built)
    ops = import_package(folder, monkeypatch)
    found = submodule(ops, "package").artifact_for(entry_of(ops), capability)
    assert (found and found.arch) == arch
    if found:
        assert submodule(ops, "package").cubin(found).endswith(str(arch).encode())


def test_a_cubin_of_another_source_is_stale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_cubins(folder, source_digest="0" * 64)
    ops = import_package(folder, monkeypatch)
    with pytest.raises(ops.PackageError, match=r"is stale.*\n?.*run `pagegen build specimen.yaml`"):
        submodule(ops, "package").artifact_for(entry_of(ops), (9, 0))


def test_a_changed_cubin_is_foreign(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_cubins(folder)
    ops = import_package(folder, monkeypatch)
    packaged = submodule(ops, "package")
    found = packaged.artifact_for(entry_of(ops), (9, 0))
    (folder / found.cubin).write_bytes(b"other")
    with pytest.raises(ops.PackageError, match="damaged or foreign"):
        packaged.cubin(found)
    (folder / found.cubin).unlink()
    with pytest.raises(ops.PackageError, match="cannot be read"):
        packaged.cubin(found)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("manifest.json", "{", "manifest.json is damaged"),
        ("manifest.json", '{"format": 2}', "manifest.json is not in format 1"),
        ("manifest.json", '{"format": 1, "name": "other"}', "manifest.json is of 'other'"),
        (
            "manifest.json",
            '{"format": 1, "name": "no_cubins", "kernels": [{}]}',
            "manifest.json lacks 'kernel'",
        ),
        ("cubin/artifacts.json", "", "cubin/artifacts.json is damaged"),
        (
            "cubin/artifacts.json",
            '{"format": 1, "artifacts": [{}]}',
            "cubin/artifacts.json lacks 'entry'",
        ),
    ],
)
def test_a_damaged_file_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, words: str
) -> None:
    (folder / "cubin").mkdir()
    (folder / file).write_text(text)
    ops = import_package(folder, monkeypatch)
    packaged = submodule(ops, "package")
    with pytest.raises(ops.PackageError, match=words):
        packaged.entries()
        packaged.artifacts()


def test_an_edited_source_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = import_package(folder, monkeypatch)
    with (folder / "torch" / "copy_blocks_default.py").open("a") as file:
        file.write("\n")
    cache = torch.zeros(8, 4, 2, 32, dtype=torch.bfloat16)
    with pytest.raises(ops.PackageError, match=r"torch/copy_blocks_default\.py was edited"):
        ops.copy_blocks(cache, cache.clone(), torch.tensor([[0, 1]]))


# ---- the folder's own life


def test_the_public_names_are_those_of_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = {
        "ArgumentError",
        "DeviceError",
        "KernelFault",
        "PackageError",
        "backends",
        "manifest",
        "register",
        "variants",
        "warm_up",
    }
    for kernels, names in (
        (("decode",), {"decode", "num_splits", "workspace_bytes"}),
        (("merge_states", "copy_blocks"), {"merge_states", "copy_blocks"}),
        (("prefill", "write_kv"), {"prefill", "write_kv"}),
    ):
        name = "_".join(kernels)
        ops = import_package(
            write_package(tmp_path, specimen(name=name, kernels=kernels)), monkeypatch
        )
        assert set(ops.__all__) == always | names
        assert all(hasattr(ops, one) for one in ops.__all__)


def test_it_answers_questions_about_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = import_package(folder, monkeypatch)
    assert ops.backends() == ("cuda", "triton", "torch")
    assert ops.variants("decode", "torch") == ("default", "checked")
    assert ops.variants("decode", "vulkan") == ()
    facts = ops.manifest()
    assert facts == json.loads((folder / "manifest.json").read_text())
    facts.clear()
    assert ops.manifest()["name"] == "no_cubins", "a caller's copy"
    assert ops.num_splits(3, 1000, device="cpu") == 1
    assert ops.workspace_bytes(3, 1) == 0 and ops.workspace_bytes(0, 8) == 0
    assert ops.workspace_bytes(1, 2) == (32 + 2) * 256


VENDORED = """
import sys
sys.modules["pagegen"] = None  # importing it now fails
sys.path.insert(0, sys.argv[1])
import acme.kernels.attention as ops
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"cupy", "triton", "jinja2", "msgspec", "yaml"}, loaded
import torch
pool = torch.randn(8, 4, 2, 32).bfloat16()
q = torch.randn(2, 4, 32).bfloat16()
table = torch.arange(4, dtype=torch.int32).view(2, 2)
lens = torch.tensor([3, 8], dtype=torch.int32)
out, lse = ops.decode(q, pool, pool.clone(), table, lens, return_lse=True)
assert out.shape == q.shape and bool(lse.isfinite().all())
print(ops.__name__)
"""


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_copy_under_another_name_runs_without_pagegen(
    packages: Path, tmp_path: Path, form: str
) -> None:
    place = tmp_path / "acme" / "kernels" / "attention"
    shutil.copytree(packages / "no_cubins", place)
    for parent in (place.parent, place.parent.parent):
        (parent / "__init__.py").touch()
    root = tmp_path
    if form == "zip":
        root = tmp_path / "acme.zip"
        with zipfile.ZipFile(root, "w") as archive:
            for file in (tmp_path / "acme").rglob("*"):
                archive.write(file, file.relative_to(tmp_path))
        shutil.rmtree(tmp_path / "acme")
    done = subprocess.run(  # noqa: PLW1510 - its output says more
        [sys.executable, "-I", "-c", VENDORED, str(root)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("acme.kernels.attention\n", "")


def test_two_packages_live_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = import_package(write_package(tmp_path, specimen(name="narrow")), monkeypatch)
    wide = import_package(write_package(tmp_path, specimen(name="wide", head_dim=64)), monkeypatch)
    states = torch.zeros(2, 4, 32).bfloat16(), torch.zeros(2, 4)
    narrow.merge_states(*states, *states)
    lens = torch.ones(1, dtype=torch.int32)
    for ops, dim in ((narrow, 32), (wide, 64), (narrow, 32)):
        k, v = torch.zeros(4, 4, 2, dim).bfloat16(), torch.zeros(4, 4, 2, 32).bfloat16()
        q = torch.zeros(1, 4, dim).bfloat16()
        assert ops.decode(q, k, v, lens[None] * 0, lens).shape == (1, 4, 32)
