"""Run every probe on a GPU of sm_90a and keep what it computes: `python -m tests.probes.record`.

A probe that does not compile, fails or hangs is reported and left out; the others are recorded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np

from pagegen.archs import arch
from pagegen.compile.nvrtc import compile_cubin
from tests.probes.device import serve
from tests.probes.probe import Arrays, differences
from tests.probes.table import PROBES

TARGET: Final = "sm_90a"
START_SECONDS: Final = 60.0
PROBE_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Text:
    """A source as the compiler takes it."""

    path: str
    text: str
    digest: str = ""


def compiled(name: str) -> tuple[bytes, str]:
    """(the cubin of a probe, why there is none)."""
    try:
        return compile_cubin(Text(f"{name}.cu", PROBES[name].text()), arch(TARGET))[0], ""
    except Exception as error:  # one line of the report, whatever it is
        return b"", f"{type(error).__name__}: {error}".replace("\n", " ")[:400]


@dataclass
class Worker:
    """The process that has the GPU; a new one where it hung or failed."""

    process: BaseProcess | None = None
    line: Connection | None = None
    device: str = ""

    def start(self) -> None:
        """Raises RuntimeError where no GPU answers."""
        self.stop()
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        status, told = self.answer(START_SECONDS)
        if status != "ready":
            raise RuntimeError(f"no GPU: {told}")
        self.device = str(told)

    def answer(self, seconds: float) -> tuple[str, Any]:
        assert self.line is not None
        try:
            if self.line.poll(seconds):
                status, told = self.line.recv()
                return str(status), told
        except (EOFError, OSError) as error:
            return "failed", f"the process ended: {error}"
        return "failed", f"no answer in {seconds:.0f} s"

    def ask(self, name: str, cubin: bytes) -> tuple[str, Any]:
        """("done", outputs) or ("failed", why); after a failure the next starts afresh."""
        try:
            if self.process is None:
                self.start()
            assert self.line is not None
            self.line.send((name, cubin))
            status, told = self.answer(PROBE_SECONDS)
        except (RuntimeError, OSError) as error:
            status, told = "failed", str(error)
        if status != "done":
            self.stop()
        return status, told

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join(10)
        self.process = None


def verdict(name: str, outputs: Arrays) -> str:
    """Whether a GPU computes what the reference says."""
    probe = PROBES[name]
    found = differences(probe, outputs, probe.reference(probe.inputs()))
    return "; ".join(found) or "as the reference"


def record(names: Iterable[str], file: Path) -> int:
    """Record probes into `file`; how many failed."""
    chosen = list(names)
    begun = time.monotonic()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        cubins = dict(zip(chosen, pool.map(compiled, chosen), strict=True))
    print(f"compiled {len(chosen)} probes in {time.monotonic() - begun:.1f} s", flush=True)
    worker = Worker()
    worker.start()
    print(f"on {worker.device}", flush=True)
    kept: dict[str, np.ndarray[Any, Any]] = {}
    failed = 0
    for name, (cubin, refused) in cubins.items():
        status: str = "failed"
        told: Any = refused
        if cubin:
            status, told = worker.ask(name, cubin)
        if status == "done":
            print(f"{name}: {verdict(name, told)}", flush=True)
            kept |= {f"{name}/{output}": array for output, array in told.items()}
        else:
            print(f"{name}: FAILED, {told}", flush=True)
            failed += 1
    worker.stop()
    np.savez_compressed(file, **kept)  # type: ignore[arg-type]
    print(f"{len(chosen) - failed} recorded in {file}, {failed} failed", flush=True)
    return failed


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("names", nargs="*", help="probes; default: all")
    given = parser.parse_args()
    raise SystemExit(min(record(given.names or PROBES, given.out), 1))


if __name__ == "__main__":
    main()
