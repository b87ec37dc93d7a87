"""A generated folder: compared, locked, swapped; a killed or failing build leaves it whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pagegen.errors import BuildError
from pagegen.folder import Folder

FILES = {"manifest.json": b"{}\n", "cuda/decode.cu": b"// one\n"}


def everything(path: str) -> bool:
    return True


def test_a_first_write_makes_exactly_the_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out" / "tiny")
    assert folder.write(FILES)
    assert {path: found.read_bytes() for path, found in folder.files().items()} == FILES


def test_a_write_of_the_same_bytes_touches_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tiny")
    folder.write(FILES)
    before = {path: found.stat().st_mtime_ns for path, found in folder.files().items()}
    inode = folder.path.stat().st_ino
    assert not folder.write(FILES)
    assert before == {path: found.stat().st_mtime_ns for path, found in folder.files().items()}
    assert inode == folder.path.stat().st_ino


def test_what_no_longer_belongs_goes_and_measured_choices_stay(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tiny")
    folder.write({**FILES, "cuda/old.cu": b"// old\n"})
    (folder.path / "tuning.json").write_text("{}")
    assert folder.differences(FILES, everything) == ["extra cuda/old.cu"]
    folder.write(FILES)
    assert sorted(folder.files()) == ["cuda/decode.cu", "manifest.json", "tuning.json"]


def test_differences_name_missing_changed_and_extra_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tiny")
    folder.write(FILES)
    wanted = {"manifest.json": b"[]\n", "triton/decode.py": b"\n"}
    assert folder.differences(wanted, everything) == [
        "changed manifest.json",
        "extra cuda/decode.cu",
        "missing triton/decode.py",
    ]


def test_a_folder_that_no_build_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.txt").write_text("years of work")
    with pytest.raises(BuildError, match=r"no build made it"):
        Folder(tmp_path / "tiny").refuse_foreign()
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="is not a folder"):
        Folder(tmp_path / "file").refuse_foreign()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_place_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(BuildError, match=r"cannot write .*Permission denied"):
        Folder(tmp_path / "tiny").write(FILES)


def test_a_full_disk_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path / "tiny")
    folder.write(FILES)

    def full(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BuildError, match="No space left on device"):
        folder.write({**FILES, "cuda/new.cu": b"//\n"})
    monkeypatch.undo()
    assert {path: found.read_bytes() for path, found in folder.files().items()} == FILES
    assert not (tmp_path / ".tiny.new").exists()


@pytest.mark.parametrize("state", ["before the swap", "between its two renames", "after it"])
def test_a_killed_build_is_cleaned_up_by_the_next(tmp_path: Path, state: str) -> None:
    folder = Folder(tmp_path / "tiny")
    folder.write(FILES)
    if state == "before the swap":
        (tmp_path / ".tiny.new").mkdir()
        (tmp_path / ".tiny.new" / "half").write_text("writt")
    elif state == "between its two renames":
        (tmp_path / "tiny").rename(tmp_path / ".tiny.old")
    else:
        (tmp_path / ".tiny.old").mkdir()
    (folder.path.parent / ".tiny.lock").write_text("")
    wanted = {**FILES, "cuda/new.cu": b"//\n"}
    folder.write(wanted)
    assert sorted(folder.files()) == sorted(wanted)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [".tiny.lock", "tiny"]


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tiny")
    code = (
        "import os, sys, pathlib\nfrom pagegen.folder import Folder\n"
        "with Folder(pathlib.Path(sys.argv[1])).locked():\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(folder.path)], check=False)
    done = threading.Event()

    def write() -> None:
        folder.write(FILES)
        done.set()

    threading.Thread(target=write, daemon=True).start()
    assert done.wait(10)


def test_many_writers_leave_one_whole_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tiny")
    versions = [{**FILES, "cuda/v.cu": f"// {n}\n".encode() * 1000} for n in range(8)]
    threads = [threading.Thread(target=folder.write, args=(files,)) for files in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path: found.read_bytes() for path, found in folder.files().items()} in versions
