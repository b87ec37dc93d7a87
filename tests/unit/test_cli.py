"""The command line as a user meets it: one clear error, status 2, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_build import SPEC

ROOT = Path(__file__).parents[2]


def pagegen(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "pagegen.cli", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PAGEGEN_CACHE_DIR": str(cwd / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "missing.yaml"), "missing.yaml"),
        (("build", "small.yaml", "--arch", "sm_999"), "unknown arch 'sm_999'"),
        (("emit", "small.yaml", "--kernel", "decod"), "no such kernel in this spec"),
        (("explain", "small.yaml", "--shape", "decode"), "decode:SEQSxCONTEXT"),
        (("build", "small.yaml", "--check"), "is not what the specs give"),
        (("verify", "nowhere"), "nowhere"),
        (("build", "small.yaml", "--out", "small.yaml"), "small.yaml"),
        (("build", "small.yaml", "-j", "-1"), "Invalid value"),
        (("bild",), "bild"),
    ],
)
def test_bad_input_is_one_error_and_status_2(
    folder: Path, words: tuple[str, ...], message: str
) -> None:
    result = pagegen(*words, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(entry.name for entry in folder.iterdir()) == ["small.yaml"]


def test_every_stage_prints_what_it_made(folder: Path) -> None:
    assert "small" in pagegen("check", "small.yaml", cwd=folder).stdout
    assert "BLOCK_SIZE" in pagegen("plan", "small.yaml", cwd=folder).stdout
    emitted = pagegen(
        "emit", "small.yaml", "--kernel", "decode", "--variant", "default", cwd=folder
    )
    compile(emitted.stdout, "decode_default.py", "exec")
    assert "floor us" in pagegen("explain", "small.yaml", cwd=folder).stdout


def test_a_build_verifies_and_a_second_changes_nothing(folder: Path) -> None:
    first = pagegen("build", "small.yaml", "--json", cwd=folder)
    assert first.returncode == 0, first.stderr
    document = json.loads(first.stdout)[0]
    assert document["changed"] and document["verified"]["failures"] == []
    again = pagegen("build", "small.yaml", cwd=folder)
    assert "unchanged, verified on" in again.stdout
    assert "small" in pagegen("ls", cwd=folder).stdout
    checked = pagegen("verify", "generated/small", "--quick", cwd=folder)
    assert checked.returncode == 0 and "decode" in checked.stdout
    edited = folder / "generated/small/torch/decode_default.py"
    edited.write_text(edited.read_text().replace("scores = q @", "scores = 2.0 * q @"))
    broken = pagegen("verify", "generated/small", "--quick", cwd=folder)
    assert broken.returncode == 2 and "was edited" in broken.stderr
