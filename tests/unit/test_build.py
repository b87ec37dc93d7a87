"""Building: the same spec gives the same bytes, several specs are read before any is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pagegen import build as building
from pagegen.build import Package, build, differences, prepare, prepare_all
from pagegen.errors import BuildError, SpecError

SPEC = """\
name: small
arch: [sm_80]
heads: {query: 4, kv: 2, dim: 32}
dtype: {query: bf16, kv: bf16, out: bf16}
cache: {block_size: 4}
backends: [torch]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SPEC)
    return file


def test_the_same_spec_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "small.yaml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(SPEC)
    assert prepare(path).files == prepare(elsewhere).files


def test_a_build_writes_what_check_then_accepts(path: Path, tmp_path: Path) -> None:
    package = prepare(path)
    out = tmp_path / "generated"
    assert differences(package, out)
    built = build(package, out)
    assert built.changed and built.folder == out / "small"
    assert differences(package, out) == []
    assert not build(package, out).changed
    (built.folder / "torch" / "decode_default.py").write_text("# edited\n")
    (built.folder / "notes.txt").write_text("mine\n")
    assert differences(package, out) == ["changed torch/decode_default.py", "extra notes.txt"]


def test_the_manifest_names_every_kernel_and_its_source(path: Path, tmp_path: Path) -> None:
    built = build(prepare(path), tmp_path / "generated")
    manifest = json.loads((built.folder / "manifest.json").read_text())
    assert manifest["name"] == "small"
    for row in manifest["kernels"]:
        assert (built.folder / row["source"]).is_file()


def test_two_specs_of_one_name_write_nothing(path: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.yaml"
    twin.write_text(SPEC)
    with pytest.raises(BuildError, match="both write small/"):
        prepare_all([path, twin])


def test_a_bad_spec_among_several_stops_all(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(SPEC.replace("block_size", "blok_size"))
    with pytest.raises(SpecError, match="blok_size"):
        prepare_all([path, bad])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bad.yaml", "small.yaml"]


def test_a_compiler_that_fails_leaves_the_old_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "generated"
    build(prepare(path), out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}

    def broken(package: Package, *rest: object) -> None:
        raise BuildError("the compiler broke")

    monkeypatch.setattr(building, "compile_all", broken)
    changed = replace(prepare(path), host=())
    with pytest.raises(BuildError, match="the compiler broke"):
        build(changed, out)
    assert before == {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
