"""The compile cache: damaged files are misses, keys cover all that shapes code, no folder is fatal.

A stub stands for the compilers: what is tested is the key and the file.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import pagegen
from pagegen.archs import ARCHS, Arch, arch
from pagegen.compile import Artifact, Cache, Resources, compile_source
from pagegen.compile.cache import compile_key, format_entry, parse_entry, replace_file
from pagegen.compile.compiler import SourceText
from pagegen.dtypes import DTYPES
from pagegen.errors import PackageError
from pagegen.plan import Constant, Param, Plan
from tests.compile.samples import Text, sample_plan, sample_source

SM_80 = arch("sm_80")
PLAN = sample_plan("cuda")
SOURCE = sample_source(PLAN)


@dataclass
class Stub:
    """A compiler whose code is the source it was given; counts what it compiled."""

    release: str = "stub 1.0"
    flags: tuple[str, ...] = ("-O3",)
    compiled: int = 0

    def available(self) -> str:
        return ""

    def refuse_unknown(self, arch: Arch) -> None:
        pass

    def identity(self) -> str:
        return self.release

    def options(self, plan: Plan, arch: Arch) -> tuple[str, ...]:
        return self.flags

    def compile(self, plan: Plan, source: SourceText, arch: Arch) -> Artifact:
        self.compiled += 1
        return artifact(plan, source, arch)


def artifact(plan: Plan, source: SourceText, arch: Arch) -> Artifact:
    resources = Resources(32, 0, 0, 512, 1024, 4, 16)
    code = b"\x7fELF\n\0" + source.text.encode()
    return Artifact(plan.symbol, arch.name, code, source.digest, "stub 1.0", "13.0", resources)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    made = Stub()
    monkeypatch.setattr("pagegen.compile.compiler_of", lambda backend: made)
    monkeypatch.setattr("pagegen.compile.cache.compiler_of", lambda backend: made)
    yield made


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def only_file(cache: Cache) -> Path:
    (found,) = cache.directory.iterdir()
    return found


# ---- hits and misses


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
def test_a_truncated_file_is_a_miss_and_is_replaced(
    stub: Stub, cache: Cache, size: float
) -> None:  # C84
    compile_source(PLAN, SOURCE, SM_80, cache)
    file = only_file(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(size * len(whole)) if size == 0.5 else int(size)])
    assert cache.find(PLAN, SOURCE, SM_80) is None
    compile_source(PLAN, SOURCE, SM_80, cache)
    assert file.read_bytes() == whole and stub.compiled == 2


def test_any_flipped_byte_is_noticed() -> None:  # C84
    made = artifact(PLAN, SOURCE, SM_80)
    whole = format_entry("0" * 64, made)
    assert parse_entry("0" * 64, whole) == made
    for at in range(len(whole)):
        with pytest.raises((ValueError, PackageError)):
            parse_entry("0" * 64, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


def test_a_flipped_byte_is_a_miss_and_is_replaced(stub: Stub, cache: Cache) -> None:  # C84
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


def test_leftovers_of_a_dead_process_do_not_matter(stub: Stub, cache: Cache) -> None:  # C84
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
) -> None:  # C84
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    (message,) = compile_twice_without_cache(stub, cache)
    assert "Read-only file system" in message and "PAGEGEN_CACHE_DIR" in message


def test_a_full_disk_costs_one_warning_and_leaves_nothing(
    stub: Stub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:  # C84
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


# ---- keys


def other_value(value: Any) -> Any:
    """A different value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return (*value, *(value[-1:] or (Constant("EXTRA", 1, "extra"),)))
        case _:
            return next(row for row in DTYPES if row != value)


@pytest.mark.parametrize("name", [field.name for field in fields(Plan)])
def test_plans_that_differ_in_one_field_have_keys_and_symbols_of_their_own(
    stub: Stub, name: str
) -> None:  # C86: enumerates the fields, so that a new one is tested the day it is added
    other = replace(PLAN, **{name: other_value(getattr(PLAN, name))})
    assert compile_key(other, SOURCE, SM_80) != compile_key(PLAN, SOURCE, SM_80)
    assert other.symbol != PLAN.symbol


@pytest.mark.parametrize("name", [field.name for field in fields(Param)])
def test_every_field_of_a_launch_argument_is_in_the_key(stub: Stub, name: str) -> None:
    row = PLAN.params[0]
    other = replace(PLAN, params=(replace(row, **{name: other_value(getattr(row, name))}),))
    base = replace(PLAN, params=(row,))
    assert compile_key(other, SOURCE, SM_80) != compile_key(base, SOURCE, SM_80)


def test_every_target_has_a_key_of_its_own(stub: Stub) -> None:  # C87: sm_90 is not sm_90a
    assert len({compile_key(PLAN, SOURCE, row) for row in ARCHS}) == len(ARCHS)


def test_source_compiler_flags_and_version_are_in_the_key(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:  # C85
    keys = [compile_key(PLAN, SOURCE, SM_80)]
    keys.append(compile_key(PLAN, replace(SOURCE, text=SOURCE.text + "\n"), SM_80))
    stub.release = "stub 1.1"
    keys.append(compile_key(PLAN, SOURCE, SM_80))
    stub.flags = ("-O2",)
    keys.append(compile_key(PLAN, SOURCE, SM_80))
    monkeypatch.setattr(pagegen, "__version__", "9.9.9")
    keys.append(compile_key(PLAN, SOURCE, SM_80))
    assert len(set(keys)) == len(keys)


def test_neither_time_nor_path_is_in_the_key(stub: Stub) -> None:  # C85
    moved = Text("elsewhere/" + SOURCE.path, SOURCE.text)
    assert compile_key(PLAN, moved, SM_80) == compile_key(PLAN, SOURCE, SM_80)


def test_two_texts_under_one_plan_do_not_mix_in_either_order(stub: Stub, tmp_path: Path) -> None:
    changed = replace(SOURCE, text=SOURCE.text.replace("127", "126"))
    for order in ((SOURCE, changed), (changed, SOURCE)):
        cache = Cache(tmp_path / order[0].digest)
        made = {source.text: compile_source(PLAN, source, SM_80, cache) for source in order}
        for source in order:
            assert compile_source(PLAN, source, SM_80, cache) == made[source.text]
            assert source.text.encode() in made[source.text].code


# ---- many processes


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
