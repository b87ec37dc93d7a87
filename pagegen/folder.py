"""A generated folder on disk: compared byte by byte, locked, and replaced in one step.

It knows no spec and no kernel.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagegen.errors import BuildError

KEPT = ("tuning.json",)  # measured, not built: a rebuild must not lose it
IGNORED = ("__pycache__", "verified.json")  # left by Python, and by verify; a swap drops both


@dataclass(frozen=True)
class Folder:
    """generated/<name>/. Hidden neighbours: .<name>.new, .<name>.old (a swap), .<name>.lock."""

    path: Path

    def _neighbour(self, suffix: str) -> Path:
        return self.path.parent / f".{self.path.name}.{suffix}"

    def refuse_foreign(self) -> None:
        """Raise BuildError when the path holds something that no build made."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise BuildError(f"{self.path} is not a folder", remedy="move it away, or use --out")
        filled = self.path.is_dir() and any(self.path.iterdir())
        if filled and not (self.path / "manifest.json").is_file():
            raise BuildError(
                f"{self.path} holds files but no manifest.json: no build made it",
                remedy="move it away, or use --out",
            )

    def files(self) -> dict[str, Path]:
        """Relative path -> file, without what Python or a tuner left."""
        if not self.path.is_dir():
            return {}
        return {
            found.relative_to(self.path).as_posix(): found
            for found in sorted(self.path.rglob("*"))
            if found.is_file() and not set(found.parts) & set(IGNORED)
        }

    def differences(self, files: dict[str, bytes], owned: Callable[[str], bool]) -> list[str]:
        """Sorted "missing X", "changed X", "extra X" lines; `owned` says which extras count."""
        present = self.files()
        lines = [f"extra {path}" for path in present if path not in files and owned(path)]
        lines = [line for line in lines if line.removeprefix("extra ") not in KEPT]
        for path, content in files.items():
            if path not in present:
                lines.append(f"missing {path}")
            elif present[path].read_bytes() != content:
                lines.append(f"changed {path}")
        return sorted(lines)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock; it goes with the process, so a killed build cannot leave it.

        A swap that a killed build left half done is finished or undone here.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._neighbour("lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._recover()
                yield
        except OSError as error:
            raise BuildError(
                f"cannot write {self.path}: {error.strerror or error}",
                remedy="free space or permissions there, or use --out",
            ) from error

    def _recover(self) -> None:
        old, new = self._neighbour("old"), self._neighbour("new")
        if old.is_dir() and not self.path.exists():
            os.rename(old, self.path)
        for leftover in (old, new):
            shutil.rmtree(leftover, ignore_errors=True)

    def write(self, files: dict[str, bytes]) -> bool:
        """Make the folder hold exactly `files` (and what is kept); False when it already did."""
        if not self.differences(files, owned=lambda path: True):
            return False
        with self.locked():
            # Another build may have written the same bytes while this one waited.
            if self.differences(files, owned=lambda path: True):
                self._replace(files)
        return True

    def _replace(self, files: dict[str, bytes]) -> None:
        """Write every file beside the folder, then swap the two. Call it under locked()."""
        new, old = self._neighbour("new"), self._neighbour("old")
        try:
            for path, content in files.items():
                target = new / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            for name in KEPT:
                if (self.path / name).is_file():
                    shutil.copy2(self.path / name, new / name)
            if self.path.exists():
                os.rename(self.path, old)
            os.rename(new, self.path)
        except OSError:
            if not self.path.exists() and old.is_dir():
                os.rename(old, self.path)
            shutil.rmtree(new, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
