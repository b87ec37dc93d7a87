"""What a run found, as lines, as a table and as JSON.

It knows no tensor: rows and roofs go in, text comes out.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.options import Options
from bench.roofline import Roofs, measure_roofs, work_of
from bench.runner import OURS, Result, Row

RESULTS = Path(__file__).parent / "results"
GIT = ("git", "rev-parse", "--short", "HEAD")


@dataclass(frozen=True)
class Environment:
    """Where and with what a run was made."""

    gpu: str
    driver: str
    torch: str
    triton: str
    cupy: str
    cuda: str
    commit: str


def version_of(module: str) -> str:
    try:
        return str(getattr(import_module(module), "__version__", "unknown"))
    except ImportError:
        return "none"


def said_by(*command: str) -> str:
    """The first line a program prints; empty if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().partition("\n")[0]


def read_environment(commit: str) -> Environment:
    """Versions, GPU and commit; what cannot be read is said to be unknown."""
    import torch

    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return Environment(
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        driver=said_by(*query) or "unknown",
        torch=torch.__version__,
        triton=version_of("triton"),
        cupy=version_of("cupy"),
        cuda=torch.version.cuda or "none",
        commit=commit or said_by(*GIT) or "unknown",
    )


def rate(row: Row, time_us: float) -> str:
    """Bandwidth; for prefill, which computes, the matrix rate."""
    work = work_of(row.case)
    if row.case.op == "prefill":
        return f"{work.tflop_per_s(time_us):6.1f} TFLOP/s"
    return f"{work.gb_per_s(time_us):6.0f} GB/s"


def who(result: Result) -> str:
    """A result's name and setup."""
    return f"{result.name} {result.config}".strip()


def headline(row: Row, roofs: Roofs) -> str:
    """One line on a case: our best time, its rate, and how it compares."""
    label = f"{row.case.label():<52}"
    best, peer = row.best(ours=True), row.best(ours=False)
    if best is None or best.timing is None:
        missing = next((one.reason for one in row.results if one.is_ours), "not run")
        return f"{label} | {missing}"
    time_us = best.timing.median_us
    share = roofs.fraction(work_of(row.case), time_us)
    parts = [label, f"{time_us:8.1f} us", rate(row, time_us), f"{share:3.0%} of roof"]
    ratio = row.ratio(best)
    if peer is not None and ratio is not None:
        parts.append(f"{ratio:.2f}x best peer ({peer.name})")
    return " | ".join([*parts, best.config])


def detail(row: Row, result: Result) -> str:
    """One indented line on one contestant."""
    if result.timing is None:
        return f"    {who(result):<34} failed: {result.reason}"
    time = result.timing
    error = f"error {result.error:.1e}" if result.error is not None else ""
    spread = f"{time.median_us:8.1f} us  [{time.low_us:.1f} .. {time.high_us:.1f}]"
    return f"    {who(result):<34} {spread:<32} {rate(row, time.median_us)}  {error}"


def print_row(row: Row, roofs: Roofs) -> None:
    """The case and everyone who took part, the fastest first."""
    print(headline(row, roofs))
    for result in row.results:
        print(detail(row, result))
    print(flush=True)


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean, or None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def fastest_by_name(row: Row) -> dict[str, Result]:
    """Each contestant's best timed setup."""
    found: dict[str, Result] = {}
    for result in row.results:  # the fastest first
        if result.timing is not None:
            found.setdefault(result.name, result)
    return found


def speedups(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric mean over rows of each peer's time over ours, and of the best peer's."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        fastest = fastest_by_name(row)
        ours, best = fastest.pop(OURS, None), row.best(ours=False)
        if ours is None or ours.timing is None:
            continue
        for name, peer in (*fastest.items(), *((("best peer", best),) if best else ())):
            if peer.timing is not None:
                ratio = peer.timing.median_us / ours.timing.median_us
                ratios.setdefault(name, []).append(ratio)
    means = {name: geometric_mean(values) for name, values in ratios.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


def markdown(rows: Sequence[Row]) -> str:
    """A table of the fastest setup of everyone, a row a case; times in microseconds."""
    names = sorted({result.name for row in rows for result in row.results} - {OURS})
    head = ["case", OURS, *names, "best peer / pagegen"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        fastest = fastest_by_name(row)
        ratio = row.ratio(fastest[OURS]) if OURS in fastest else None
        cells = [_cell(fastest.get(name)) for name in (OURS, *names)]
        last = f"{ratio:.2f}" if ratio is not None else "-"
        lines.append(f"| {' | '.join([row.case.label(), *cells, last])} |")
    return "\n".join(lines)


def _cell(result: Result | None) -> str:
    if result is None or result.timing is None:
        return "-"
    return f"{result.timing.median_us:.1f}"


def to_json(rows: Sequence[Row], roofs: Roofs, environment: Environment) -> dict[str, Any]:
    """Everything, failures included."""
    return {
        "environment": asdict(environment),
        "roofs": asdict(roofs),
        "rows": [
            {
                "case": asdict(row.case),
                "work": asdict(work_of(row.case)),
                "floor_us": roofs.floor_us(work_of(row.case)),
                "results": [asdict(result) for result in row.results],
            }
            for row in rows
        ],
        "geometric_means": speedups(rows),
    }


def write_json(data: dict[str, Any], bench: str, options: Options) -> Path:
    """Write a report where the options say, or among the committed results."""
    return write_report(data, bench, options.json_path)


def write_report(data: dict[str, Any], bench: str, chosen: Path | None) -> Path:
    """Write a report to a path, or among the committed results."""
    gpu = re.sub(r"\W+", "-", str(data["environment"]["gpu"])).strip("-").lower()
    path = chosen or RESULTS / f"{bench}-{gpu}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def begin(options: Options) -> tuple[Environment, Roofs]:
    """Say where the run is made, and measure the machine's roofs."""
    environment = read_environment(options.commit)
    print(", ".join(f"{name} {value}" for name, value in asdict(environment).items()))
    roofs = measure_roofs()
    print(f"roofs: {roofs.gb_per_s:.0f} GB/s, {roofs.tflop_per_s:.0f} TFLOP/s\n", flush=True)
    return environment, roofs


def finish(
    bench: str, rows: Sequence[Row], options: Options, environment: Environment, roofs: Roofs
) -> None:
    """The table, the means and the file."""
    print(markdown(rows))
    for name, mean in speedups(rows).items():
        print(f"geometric mean: {mean:.2f}x {name}")
    print(f"written to {write_json(to_json(rows, roofs, environment), bench, options)}")
