"""The compile cache on disk: damaged files are misses, and no folder is fatal."""

from __future__ import annotations

import errno
import multiprocessing
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagegen.compile import Artifact, Cache, compile_source
from pagegen.compile.cache import compile_key, format_entry, parse_entry, replace_file
from pagegen.errors import PackageError
from tests.stub_compiler import PLAN, SM_80, SOURCE, Stub, artifact


def only_file(cache: Cache) -> Path:
    (found,) = cache.directory.iterdir()
    return found


def test_the_second_compile_is_a_hit_with_the_same_artifact(stub: Stub, cache: Cache) -> None:
    first = compile_source(PLAN, SOURCE, SM_80, cache)
    second = compile_source(PLAN, SOURCE, SM_80, cache)
    assert first == second and stub.compiled == 1


def test_an_artifact_survives_its_row(stub: Stub) -> None:
    made = artifact(PLAN, SOURCE, SM_80)
    assert Artifact.from_row(made.to_row(), made.code) == made
    with pytest.raises(PackageError, match="not the code"):
        Artifact.from_row(made.to_row(), made.code + b"x")
    with pytest.raises(PackageError, match="not the row"):
        Artifact.from_row({}, made.code)


@pytest.mark.parametrize("size", [0, 1, 0.5, -1])
def test_a_truncated_file_is_a_miss_and_is_replaced(stub: Stub, cache: Cache, size: float) -> None:
    compile_source(PLAN, SOURCE, SM_80, cache)
    file = only_file(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(size * len(whole)) if size == 0.5 else int(size)])
    assert cache.find(PLAN, SOURCE, SM_80) is None
    compile_source(PLAN, SOURCE, SM_80, cache)
    assert file.read_bytes() == whole and stub.compiled == 2


def test_any_flipped_byte_is_noticed() -> None:
    made = artifact(PLAN, SOURCE, SM_80)
    whole = format_entry("0" * 64, made)
    assert parse_entry("0" * 64, whole) == made
    for at in range(len(whole)):
        with pytest.raises((ValueError, PackageError)):
            parse_entry("0" * 64, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


def test_a_flipped_byte_is_a_miss_and_is_replaced(stub: Stub, cache: Cache) -> None:
    compile_source(PLAN, SOURCE, SM_80, cache)
    file = only_file(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"?")
    compile_source(PLAN, SOURCE, SM_80, cache)
    assert file.read_bytes() == whole and stub.compiled == 2


def test_a_foreign_file_under_the_right_name_is_a_miss(stub: Stub, cache: Cache) -> None:
    other = replace(PLAN, num_warps=8)
    compile_source(PLAN, SOURCE, SM_80, cache)
    compile_source(other, SOURCE, SM_80, cache)
    mine, theirs = (cache.file(compile_key(row, SOURCE, SM_80)) for row in (PLAN, other))
    mine.write_bytes(theirs.read_bytes())
    assert cache.find(PLAN, SOURCE, SM_80) is None
    with pytest.raises(ValueError, match="not an entry"):
        parse_entry("0" * 64, b"\x80\x04K\x01.")


def test_leftovers_of_a_dead_process_do_not_matter(stub: Stub, cache: Cache) -> None:
    cache.directory.mkdir()
    (cache.directory / ".0123.tmp").write_bytes(b"half")
    (cache.directory / "lock").write_text("99999999")
    assert compile_source(PLAN, SOURCE, SM_80, cache) == compile_source(PLAN, SOURCE, SM_80, cache)
    assert stub.compiled == 1


# ---- folders that cannot be written


def compile_twice_without_cache(stub: Stub, cache: Cache) -> list[str]:
    """The warnings of two compiles, of which both must work."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        compile_source(PLAN, SOURCE, SM_80, cache)
        compile_source(PLAN, SOURCE, SM_80, cache)
    assert stub.compiled == 2
    return [str(row.message) for row in seen]


def test_a_read_only_folder_costs_one_warning(
    stub: Stub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    (message,) = compile_twice_without_cache(stub, cache)
    assert "Read-only file system" in message and "PAGEGEN_CACHE_DIR" in message


def test_a_full_disk_costs_one_warning_and_leaves_nothing(
    stub: Stub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    (message,) = compile_twice_without_cache(stub, cache)
    assert "No space left on device" in message
    assert list(cache.directory.iterdir()) == []


def test_a_folder_that_cannot_exist_costs_one_warning(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (message,) = compile_twice_without_cache(stub, Cache(tmp_path / "file" / "cache"))
    assert "Not a directory" in message


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "entry"
    replace_file(file, b"old")
    with pytest.raises(TypeError):
        replace_file(file, None)  # type: ignore[arg-type]
    assert file.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


# ---- where it is


def test_the_folder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PAGEGEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Cache.default().directory == tmp_path / ".cache" / "pagegen"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Cache.default().directory == tmp_path / ".cache" / "pagegen"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache.default().directory == tmp_path / "xdg" / "pagegen"
    monkeypatch.setenv("PAGEGEN_CACHE_DIR", "here")
    assert Cache.default().directory == Path.cwd() / "here"
    assert not (tmp_path / ".cache").exists()


def test_a_user_without_a_home_compiles_uncached(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PAGEGEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert len(compile_twice_without_cache(stub, Cache.default())) == 1


def write_and_read(job: tuple[str, int]) -> int:
    """Write one entry many times and read it back between; how many reads were torn."""
    folder, size = job
    file = Path(folder) / "entry"
    torn = 0
    for _ in range(50):
        replace_file(file, bytes([size % 251]) * size)
        content = file.read_bytes()
        torn += len(set(content)) != 1
    return torn


def test_processes_that_share_a_folder_never_see_half_a_file(tmp_path: Path) -> None:
    jobs = [(str(tmp_path), 10_000 + 777 * row) for row in range(4)]
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert sum(pool.map(write_and_read, jobs)) == 0
    assert os.listdir(tmp_path) == ["entry"]
