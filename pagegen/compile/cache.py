"""Compiled code kept between builds, found by its content: everything that shapes it is the key.

It knows no kernel and no package; deleting its folder costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pagegen
from pagegen.archs import Arch
from pagegen.compile.artifact import Artifact
from pagegen.compile.compiler import SourceText, compiler_of
from pagegen.errors import PackageError
from pagegen.plan import Plan

VARIABLE: Final = "PAGEGEN_CACHE_DIR"
MAGIC: Final = b"pagegen artifact 1\n"  # counts up when an entry's form or meaning changes


def compile_key(plan: Plan, source: SourceText, arch: Arch) -> str:
    """sha256, hexadecimal, of all that shapes the artefact: text, plan, target, options, releases.

    Never a time or a path. Raises CompileError when the plan's compiler is not available.
    """
    compiler = compiler_of(plan.backend)
    parts = [
        MAGIC.decode(),
        pagegen.__version__,
        compiler.identity(),
        *compiler.options(plan, arch),
        arch.name,
        plan.symbol,
        plan.digest,
        source.text,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder with one file per artefact. Any number of processes may share it.

    There is no lock: a file is written aside and renamed, so that a reader sees all of it or none.
    A file that is not what was written is a miss, and the next store replaces it. Where nothing
    can be written, everything is a miss and one warning is given.
    """

    directory: Path

    @staticmethod
    def default() -> Cache:
        """$PAGEGEN_CACHE_DIR, else pagegen/ in the user's cache folder (XDG base directories)."""
        chosen = os.environ.get(VARIABLE)
        if chosen:
            return Cache(Path(chosen).absolute())
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(xdg):  # the standard says to ignore a relative one
            return Cache(Path(xdg) / "pagegen")
        try:
            return Cache(Path.home() / ".cache" / "pagegen")
        except RuntimeError:  # a user without a home: no folder is ours, and a store will say so
            return Cache(Path(os.devnull) / "pagegen")

    def file(self, key: str) -> Path:
        """Where the entry of `key` is, or would be."""
        return self.directory / f"{key}.artifact"

    def find(self, plan: Plan, source: SourceText, arch: Arch) -> Artifact | None:
        """The artefact of an earlier build, or None. Raises CompileError as compile_key does."""
        key = compile_key(plan, source, arch)
        try:
            return parse_entry(key, self.file(key).read_bytes())
        except (OSError, ValueError, PackageError):
            return None

    def store(self, plan: Plan, source: SourceText, arch: Arch, artifact: Artifact) -> None:
        """Keep an artefact; a folder that cannot be written costs a warning only."""
        key = compile_key(plan, source, arch)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            replace_file(self.file(key), format_entry(key, artifact))
        except OSError as error:
            # The same text every time: Python shows a repeated warning once.
            warnings.warn(
                f"{self.directory}: {error.strerror or error}; compiling without a cache. "
                f"Set {VARIABLE} to a folder that can be written.",
                RuntimeWarning,
                stacklevel=2,
            )


def format_entry(key: str, artifact: Artifact) -> bytes:
    """A file's content: magic, checksum of the rest, key, row, code."""
    row = json.dumps(artifact.to_row(), sort_keys=True)
    body = f"{key}\n{row}\n".encode() + artifact.code
    return MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def parse_entry(key: str, content: bytes) -> Artifact:
    """The artefact in a file. Raises ValueError or PackageError for any other content."""
    if not content.startswith(MAGIC):
        raise ValueError("not an entry of this version")
    checksum, body = content.removeprefix(MAGIC).split(b"\n", 1)
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise ValueError("damaged")
    written_for, row, code = body.split(b"\n", 2)
    if written_for != key.encode():
        raise ValueError("another entry's content")
    return Artifact.from_row(json.loads(row), code)


def replace_file(path: Path, content: bytes) -> None:
    """Write aside, rename once; leaves nothing behind when it fails. Raises OSError."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem[:16]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
