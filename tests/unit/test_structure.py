"""The shape of the tree: floors, folders, sizes. A file that breaks one is moved or split."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pagegen"
MAX_LINES = 300

# From the lowest floor to the highest. A room is one stage; its files may import each other, and
# any room of a lower floor.
FLOORS: tuple[dict[str, str], ...] = (
    {"errors": "errors"},
    {"dtypes": "dtypes", "archs": "archs"},
    {
        "spec": "spec spec_rules schema schema_check yaml_tree yaml_scalar",
        "plan": "plan wgmma",
        "manifest": "manifest",
    },
    {"lower": "lower", "space": "space", "explain": "explain"},
    {"emit": "emit package", "compile": "compile"},
    {"build": "build folder", "runtime": "runtime", "simulate": "simulate"},
    {"verify": "verify cases oracle"},
    {"cli": "cli console views proof generate prompts __main__"},
)
# Along a floor only where one room names what the other declares.
ALONG = {("spec", "plan")}
RUNTIME_MAY_USE = {"runtime", "errors", "dtypes", "archs", "manifest"}
# What a machine that only serves does not have.
COMPILER_ONLY = {"jinja2", "yaml", "msgspec", "typer", "rich"}


def module_name(path: Path) -> str:
    """pagegen/runtime/loader.py -> pagegen.runtime.loader; a package is named by its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of pagegen; the two symlinked folders included, templates left out."""
    folders = [PACKAGE, *(path for path in PACKAGE.iterdir() if path.is_dir())]
    found = [path for folder in folders for path in folder.glob("*.py")]
    found += [path for path in (PACKAGE / "runtime").rglob("*/*.py")]
    return {
        module_name(path): path for path in found if "templates" not in path.relative_to(ROOT).parts
    }


def room_of(module: str) -> str:
    """The room of pagegen.<name>.<anything>."""
    name = module.split(".")[1]
    for floor in FLOORS:
        for room, names in floor.items():
            if name in names.split():
                return room
    raise AssertionError(f"pagegen/{name}.py has no room: give it one in {Path(__file__).name}")


def floor_of(room: str) -> int:
    return next(level for level, floor in enumerate(FLOORS) if room in floor)


def for_types_only(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:`, whose imports never run."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(path: Path) -> Iterator[str]:
    """The full name of everything a file imports, inside functions too."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import in line {node.lineno}"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules() else str(node.module)
        elif not for_types_only(node):
            pending.extend(ast.iter_child_nodes(node))


def own_imports(module: str) -> set[str]:
    """The modules of pagegen that a module imports, pagegen itself left out."""
    found = {name for name in imports(modules()[module]) if name.startswith("pagegen.")}
    return {name for name in found if "templates" not in name.split(".")}


ROOMED = sorted(name for name in modules() if name != "pagegen")


@pytest.mark.parametrize("module", ROOMED)
def test_imports_point_down(module: str) -> None:
    here = room_of(module)
    for name in own_imports(module):
        there = room_of(name)
        down = floor_of(there) < floor_of(here)
        assert here == there or down or (here, there) in ALONG, f"{module} imports {name}"


def test_build_and_runtime_are_siblings() -> None:
    assert floor_of("build") == floor_of("runtime")
    assert not {("build", "runtime"), ("runtime", "build")} & ALONG


@pytest.mark.parametrize("module", [name for name in ROOMED if room_of(name) == "runtime"])
def test_the_runtime_knows_of_the_compiler_only_the_manifest(module: str) -> None:
    assert {room_of(name) for name in own_imports(module)} <= RUNTIME_MAY_USE


def reached(module: str) -> set[str]:
    """A module and everything of pagegen that it imports, at any remove."""
    seen: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in seen and name in modules():
            seen.add(name)
            pending.extend(own_imports(name))
    return seen


@pytest.mark.parametrize("module", [n for n in ROOMED if room_of(n) in ("runtime", "verify")])
def test_a_machine_that_serves_or_verifies_needs_no_compiler(module: str) -> None:
    for name in reached(module) | {"pagegen"}:
        top = {found.split(".")[0] for found in imports(modules()[name])}
        assert not top & COMPILER_ONLY, f"{module} reaches {name}"


GPU_LIBRARIES = {"cupy", "triton", "cuda", "pynvml"}


@pytest.mark.parametrize("module", ROOMED)
def test_gpu_libraries_are_imported_inside_functions(module: str) -> None:
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & GPU_LIBRARIES


def test_the_wheel_has_every_folder() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        ".".join(Path(folder).relative_to(ROOT).parts)
        for folder, _, files in os.walk(PACKAGE, followlinks=True)
        if any(name.endswith((".py", ".j2")) for name in files)
    }
    assert set(config["packages"]) == folders
    assert len(config["packages"]) == len(folders)
    for name, folder in config["package-dir"].items():
        inside = ROOT.joinpath(*name.split("."))
        assert inside.resolve() == (ROOT / folder).resolve()


@pytest.mark.parametrize("name", ["runtime", "templates"])
def test_a_checkout_has_the_shape_of_the_wheel(name: str) -> None:
    link = PACKAGE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)


def texts() -> list[Path]:
    """Every text file of ours that a person edits."""
    folders = ("pagegen", "runtime", "templates", "specs", "tests", "bench", "docs", ".ci")
    kinds = {".py", ".j2", ".yaml", ".md", ".toml", ".cu", ""}
    found = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return sorted({p for p in found if p.suffix in kinds and "__pycache__" not in p.parts})


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_short_and_knows_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".py", ".j2"):
        assert len(text.splitlines()) <= MAX_LINES, "split it by noun"
    assert not re.search(r"(?<![\w.~}])/(?:home|root|Users|work|workspace)/\w", text)
