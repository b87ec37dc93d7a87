"""Emitted CUDA source -> a shared library that runs it on the CPU, kept by content.

It knows the C++ compiler and where results are kept, and nothing of launches.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pagegen.compile.cache import Cache, replace_file
from pagegen.errors import CompileError

COMPILERS: Final = ("c++", "g++", "clang++")  # in the order they are looked for; CXX comes first
COMMON: Final = ("-std=c++20", "-fPIC", "-g1", "-fno-strict-aliasing", "-pthread")
RUNTIME: Final = ("-O2", "-fvisibility=hidden")
KERNEL: Final = (
    "-O1", "-DPAGEGEN_SIMULATOR", "-include", "hopper.h", "-w",
    "-ffp-contract=off",  # the same numbers with every compiler
)  # fmt: skip
# Calls the simulator before every access to memory. The sanitizers' own libraries are not used.
WATCHED: Final = ("-fsanitize=thread", "-fsanitize=alignment,bounds,object-size")
# A kernel is a function of its Params; the simulator calls it through a pointer to them.
ENTRY: Final = """
extern "C" __attribute__((visibility("hidden"), no_sanitize("thread"))) void pagegen_kernel(
    const void* params) {{
  {symbol}(*static_cast<const Params*>(params));
}}
"""


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler, by its command."""

    command: tuple[str, ...]
    identity: str  # what it says it is

    def run(self, arguments: list[str], folder: Path, what: str) -> None:
        """Compile or link in `folder`. Raises CompileError with the compiler's words."""
        done = subprocess.run(
            [*self.command, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise CompileError(
                f"{self.command[0]} does not compile {what}:\n{done.stderr.strip()[:4000]}",
                remedy="a C++20 compiler is needed: g++ 11 or clang++ 16, or later",
            )


@cache
def host_compiler(wanted: str | None = None) -> HostCompiler:
    """$CXX, or the first C++ compiler on the path. Raises CompileError when there is none."""
    chosen = wanted or os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), "")
    command = tuple(shlex.split(chosen))
    if not command and find_spec("ziglang") is not None:
        command = (sys.executable, "-m", "ziglang", "c++")  # clang++ from PyPI
    if not command or shutil.which(command[0]) is None:
        raise CompileError(
            f"no C++ compiler: {chosen or ', '.join(COMPILERS)} is not on the path",
            allowed="g++ 11 or later, clang++ 16 or later, ziglang from PyPI",
            remedy="install one (apt install g++, or pip install ziglang), or name it in CXX",
        )
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return HostCompiler(command, told.stdout.splitlines()[0] if told.stdout else command[0])


@cache
def simulator_files() -> dict[str, str]:
    """The simulator's own sources by name."""
    root = files("pagegen") / "templates" / "simulator"
    return {
        each.name: each.read_text(encoding="utf-8")
        for each in sorted(root.iterdir(), key=lambda one: one.name)
        if each.name.endswith((".h", ".cpp"))
    }


def key_of(*parts: object) -> str:
    """sha256, hexadecimal."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def sanitizer_flags(sanitizers: str) -> tuple[str, ...]:
    """Flags for the compiler's own sanitizers ("address,undefined") in place of the watching."""
    return (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all") if sanitizers else ()


def library(text: str, symbol: str, file_name: str, *, sanitizers: str = "") -> Path:
    """The shared library of one emitted kernel, from the cache or compiled now.

    text: the emitted source; symbol: its kernel; file_name: how reports name it. Raises
    CompileError.
    """
    compiler = host_compiler()
    sources = simulator_files()
    key = key_of("library 1", compiler.identity, sources, text, symbol, file_name, sanitizers)
    folder = Cache.default().directory / "simulate"
    kept = folder / f"{key}.so"
    if kept.is_file():
        return kept
    with tempfile.TemporaryDirectory(prefix="pagegen_simulate_") as scratch:
        work = Path(scratch)
        for name, content in sources.items():
            (work / name).write_text(content, encoding="utf-8")
        objects = runtime_objects(compiler, sanitizers, work, folder)
        line = f'#line 1 "{file_name}"\n'
        (work / "kernel.cu.cpp").write_text(line + text + ENTRY.format(symbol=symbol), "utf-8")
        flags = [*COMMON, *KERNEL, *(sanitizer_flags(sanitizers) or WATCHED)]
        compiler.run([*flags, "-c", "kernel.cu.cpp", "-o", "kernel.o"], work, file_name)
        link = [*COMMON, "-shared", *sanitizer_flags(sanitizers), "kernel.o", *objects]
        compiler.run([*link, "-o", "kernel.so"], work, file_name)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(kept, (work / "kernel.so").read_bytes())
    return kept


def runtime_objects(compiler: HostCompiler, sanitizers: str, work: Path, folder: Path) -> list[str]:
    """The simulator compiled, from the cache or now: one object for each of its sources."""
    sources = simulator_files()
    objects = []
    for name in sources:
        if not name.endswith(".cpp"):
            continue
        key = key_of("object 1", compiler.identity, sources, name, sanitizers)
        kept = folder / f"{key}.o"
        if not kept.is_file():
            output = f"{name}.o"
            flags = [*COMMON, *RUNTIME, *sanitizer_flags(sanitizers)]
            compiler.run([*flags, "-c", name, "-o", output], work, f"simulator/{name}")
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(kept, (work / output).read_bytes())
        objects.append(str(kept))
    return objects
