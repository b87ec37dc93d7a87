"""Compiles texts for the simulator many times over: its headers are read by the compiler once.

It knows no kernel. The flags are those of pagegen.simulate.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pagegen.compile.cache import Cache
from pagegen.errors import CompileError
from pagegen.plan import Plan
from pagegen.simulate.launch import READ_ONLY, Simulator
from pagegen.simulate.library import (
    COMMON,
    ENTRY,
    KERNEL,
    WATCHED,
    host_compiler,
    runtime_objects,
    simulator_files,
)


@dataclass(frozen=True)
class Workshop:
    """A folder with the simulator, compiled, and its headers."""

    folder: Path
    objects: tuple[str, ...]

    @staticmethod
    def open(folder: Path) -> Workshop:
        """Prepare an empty folder."""
        for name, content in simulator_files().items():
            (folder / name).write_text(content, encoding="utf-8")
        kept = Cache.default().directory / "simulate"
        objects = runtime_objects(host_compiler(), "", folder, kept)
        try:  # g++ finds it by its name
            flags = [*COMMON, *(flag for flag in KERNEL if "primitives.h" not in flag), *WATCHED]
            flags.remove("-include")
            source = ["-x", "c++-header", "primitives.h", "-o", "primitives.h.gch"]
            host_compiler().run([*flags, *source], folder, "headers")
        except CompileError:
            (folder / "primitives.h.gch").unlink(missing_ok=True)
        return Workshop(folder, tuple(objects))

    def load(self, plan: Plan, text: str) -> Simulator:
        """A text compiled and loaded; no file stays. Raises CompileError."""
        file_name = f"{plan.kernel}_{plan.variant}.cu"
        with TemporaryDirectory(dir=self.folder) as scratch:  # a library is known by its path
            work = Path(scratch)
            self._compile(work, file_name, text + ENTRY.format(symbol=plan.symbol), "-g1")
            link = [*COMMON, "-shared", "kernel.o", *self.objects, "-o", "kernel.so"]
            host_compiler().run(link, work, file_name)
            path = work / "kernel.so"
            code = ctypes.CDLL(str(path))
        code.pagegen_simulate.argtypes = (ctypes.c_void_p,)
        return Simulator(plan.symbol, file_name, path, code, frozenset(READ_ONLY.findall(text)))

    def object_code(self, text: str) -> bytes:
        """A text as an object file without debug information."""
        with TemporaryDirectory(dir=self.folder) as scratch:
            self._compile(Path(scratch), "kernel.cu", text, "-g0")
            return (Path(scratch) / "kernel.o").read_bytes()

    def _compile(self, work: Path, file_name: str, text: str, debug: str) -> None:
        (work / "kernel.cpp").write_text(f'#line 1 "{file_name}"\n{text}', encoding="utf-8")
        flags = [*COMMON, debug, f"-I{self.folder}", *KERNEL, *WATCHED]
        host_compiler().run([*flags, "-c", "kernel.cpp", "-o", "kernel.o"], work, file_name)
