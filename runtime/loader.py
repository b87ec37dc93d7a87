"""From a generated package's folder to its functions.

It knows neither how packages are made nor what their functions do: the manifest is the interface.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from pagegen.errors import PackageError
from pagegen.manifest import Manifest

REMEDY = "build it with `pagegen build SPEC`, and give the folder that holds manifest.json"
WITH_BACKEND = ("decode", "prefill", "write_kv", "merge_states", "copy_blocks", "num_splits")


@dataclass(frozen=True)
class Ops:
    """A loaded package: its module's functions as attributes, on `backend` if one was named."""

    module: ModuleType
    facts: Manifest
    backend: str | None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        if self.backend is None or name not in WITH_BACKEND:
            return value
        bound = functools.partial(value, backend=self.backend)
        object.__setattr__(self, name, bound)  # found without __getattr__ from now on
        return bound

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.module.__all__})


class FreshLoader(SourceFileLoader):
    """Compiles a module's source each time it is imported.

    Bytecode caches compare whole seconds and sizes, so that a package built twice within a second
    could run its old code.
    """

    def path_stats(self, path: str) -> Any:
        raise OSError(f"{path}: no bytecode cache")


def load(path: str | Path, backend: str | None = None) -> Ops:
    """The package in the folder `path`; loading it again after a rebuild gives the new one.

    backend: what its functions run on unless a call says otherwise; default: the fastest that the
    tensors' device has. Raises PackageError when the folder is no package, is damaged, or lacks
    the backend.
    """
    folder = Path(path).resolve()
    facts = read_manifest(folder)
    if backend is not None and backend not in facts.spec.backends:
        raise PackageError(
            f"no backend {backend!r}",
            allowed=", ".join(facts.spec.backends),
            remedy=f"add it to backends in {facts.spec.file} and build again",
            where=str(folder),
        )
    return Ops(_import(folder, facts), facts, backend)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the package in `folder`. Raises PackageError."""
    file = folder / "manifest.json"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(
            f"not a generated package: {error}", remedy=REMEDY, where=str(folder)
        ) from error
    return Manifest.from_json(text, str(file))


def manifest_of(ops: Any) -> Manifest:
    """The manifest of a package that is loaded, or imported as a module. Raises PackageError."""
    if isinstance(ops, Ops):
        return ops.facts
    try:
        text = json.dumps(ops.manifest())
    except AttributeError as error:
        raise PackageError(f"{ops!r} is no generated package", remedy=REMEDY) from error
    return Manifest.from_json(text)


def _import(folder: Path, facts: Manifest) -> ModuleType:
    """Import the folder under a name that follows from its place and contents."""
    sources = sorted(folder.glob("*.py"))
    text = "\n".join((str(folder), facts.digest, *(_digest(source) for source in sources)))
    name = f"pagegen_generated_{facts.name}_{sha256(text.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    init = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        name, init, loader=FreshLoader(name, str(init)), submodule_search_locations=[str(folder)]
    )
    if not init.is_file() or spec is None or spec.loader is None:
        raise PackageError("no __init__.py", remedy=REMEDY, where=str(folder))
    for place in (folder, folder / "torch", folder / "triton"):
        sys.path_importer_cache[str(place)] = FileFinder(str(place), (FreshLoader, [".py"]))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()
