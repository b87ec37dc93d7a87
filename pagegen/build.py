"""Spec file -> generated/<name>/: sources emitted, targets compiled, one folder swapped in.

It knows no GPU and runs no kernel: what it writes, verify runs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from pagegen.archs import arch
from pagegen.compile import Artifact, compile_source
from pagegen.compile.cache import Cache
from pagegen.emit import Source, emit, emit_package
from pagegen.errors import BuildError
from pagegen.folder import Folder
from pagegen.lower import lower
from pagegen.plan import Plan
from pagegen.spec import Spec, load

ARTIFACTS = "cubin/artifacts.json"


@dataclass(frozen=True)
class Package:
    """A spec with its plans and every text file of its folder, before anything is compiled."""

    spec: Spec
    plans: tuple[Plan, ...]
    kernels: tuple[Source, ...]  # one per plan, in order
    host: tuple[Source, ...]  # __init__.py and its neighbours, manifest.json

    @property
    def files(self) -> dict[str, bytes]:
        """Path within the folder -> content."""
        return {source.path: source.text.encode() for source in (*self.kernels, *self.host)}


@dataclass(frozen=True)
class Built:
    """What a build did."""

    package: Package
    folder: Path
    artifacts: tuple[Artifact, ...]
    changed: bool  # False: the folder was already right and no file was touched


def prepare(path: str | Path, archs: tuple[str, ...] = ()) -> Package:
    """Everything up to source text. `archs` replaces the spec's own list when given."""
    spec = load(path)
    if archs:
        spec = replace(spec, archs=tuple(arch(name).name for name in archs))
    plans = lower(spec)
    kernels = tuple(emit(plan, spec.file_name) for plan in plans)
    return Package(spec, plans, kernels, emit_package(spec, plans, kernels))


def differences(package: Package, out: Path) -> list[str]:
    """Files of generated/<name>/ that are not what the spec gives, for `build --check`."""
    folder = Folder(out / package.spec.name)
    return folder.differences(package.files, owned=lambda path: not path.startswith("cubin/"))


def jobs_of(package: Package) -> Iterator[tuple[Plan, Source, str]]:
    """(plan, source, arch name) of every compilation."""
    for plan, source in zip(package.plans, package.kernels, strict=True):
        for target in plan.targets:
            yield plan, source, target


def compile_job(plan: Plan, source: Source, target: str, cache_dir: str) -> Artifact:
    """One compilation in a worker process."""
    return compile_source(plan, source, arch(target), Cache(Path(cache_dir)))


def compile_all(
    package: Package, cache: Cache, jobs: int, progress: Callable[[str, int, int], None]
) -> tuple[Artifact, ...]:
    """Compile every variant for every target; what the cache holds is not compiled again."""
    todo = list(jobs_of(package))
    done: dict[int, Artifact] = {}
    missing: list[int] = []
    for index, (plan, source, target) in enumerate(todo):
        found = cache.find(plan, source, arch(target))
        if found is None:
            missing.append(index)
        else:
            done[index] = found
    progress("compile", len(done), len(todo))
    if missing:
        # Forked workers would inherit locks of threads that do not exist in them.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=context) as pool:
            futures = {
                pool.submit(compile_job, *todo[index], str(cache.directory)): index
                for index in missing
            }
            try:
                for future in as_completed(futures):
                    done[futures[future]] = future.result()
                    plan, _, target = todo[futures[future]]
                    progress(f"{plan.kernel} {plan.backend} {target}", len(done), len(todo))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return tuple(done[index] for index in range(len(todo)))


def cubin_files(artifacts: tuple[Artifact, ...]) -> dict[str, bytes]:
    """cubin/ and the rows that describe it."""
    rows = [artifact.to_row() for artifact in artifacts]
    files = {artifact.path: artifact.code for artifact in artifacts}
    text = json.dumps({"format": 1, "artifacts": rows}, indent=1, sort_keys=True) + "\n"
    return {**files, ARTIFACTS: text.encode()}


def build(
    package: Package,
    out: Path,
    *,
    jobs: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Built:
    """Compile a package and write it into `out`/<name>/.

    The folder is replaced in one step, and only when a byte would change; tuning.json, which a
    build does not make, is kept. Raises a PagegenError and leaves the folder as it was.
    """
    folder = Folder(out / package.spec.name)
    folder.refuse_foreign()
    artifacts = compile_all(package, Cache.default(), jobs or os.cpu_count() or 1, progress)
    files = {**package.files, **cubin_files(artifacts)}
    changed = folder.write(files)
    return Built(package, folder.path, artifacts, changed)


def prepare_all(paths: list[Path], archs: tuple[str, ...] = ()) -> tuple[Package, ...]:
    """Read and plan several specs before anything is written.

    Raises BuildError when two of them would write the same folder.
    """
    owners: dict[str, Path] = {}
    packages = []
    for path in paths:
        package = prepare(path, archs)
        other = owners.setdefault(package.spec.name, path)
        if other is not path:
            raise BuildError(
                f"{other} and {path} both write {package.spec.name}/",
                remedy="give each spec a name of its own",
            )
        packages.append(package)
    return tuple(packages)
