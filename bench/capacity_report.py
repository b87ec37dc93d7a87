"""What bench_capacity found, as lines, as bars that were met or lost, and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.block_peers import Hits, Missing, Speed
from bench.capacity import Capacity
from bench.report import GIT, RESULTS, said_by, version_of

DECODE_RESULTS = RESULTS / "block_size-h200.json"
DECODE_CASE = "64x8k"
BLOCK_SIZE = 16
MAX_TAIL_WASTE = 0.015
MIN_CONCURRENCY = 2.0
MIN_SPEED = 2.0


@dataclass(frozen=True)
class TraceResult:
    """One trace's closed loops."""

    trace: str
    requests: int
    longest: int  # tokens
    policies: tuple[Capacity, ...]  # paging with blocks of 16 first
    block_sizes: dict[int, Capacity]


@dataclass(frozen=True)
class Bar:
    """A figure to reach."""

    what: str
    wanted: str
    value: float | None  # None: the peer is missing
    met: bool | None


def environment(commit: str) -> dict[str, Any]:
    """Where and with what a run was made."""
    names = [line for line in _cpu_lines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version_of("numpy"),
        "commit": commit or said_by(*GIT) or "unknown",
    }


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def decode_times() -> dict[int, float]:
    """Measured decode time by block size in microseconds, the fastest of ours."""
    try:
        rows = json.loads(DECODE_RESULTS.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError):
        return {}
    times: dict[int, float] = {}
    for row in rows:
        if row["case"]["name"] == DECODE_CASE:
            taken = [r["timing"]["median_us"] for r in row["results"] if r["name"] == "pagegen"]
            times[row["case"]["block_size"]] = min(taken)
    return times


def print_policies(result: TraceResult) -> None:
    """A table of paging against contiguous memory."""
    print(f"\n{result.trace}: {result.requests} requests, the longest {result.longest} tokens")
    print(
        f"{'policy':<20} {'mean':>7} {'peak':>6} {'wasted':>8} {'tail':>7} {'hits':>7} "
        f"{'preempted':>10} {'rejected':>9}"
    )
    for one in result.policies:
        print(
            f"{one.policy:<20} {one.mean_concurrency:7.1f} {one.peak_concurrency:6} "
            f"{one.wasted_share:8.2%} {one.tail_waste:7.2%} {one.hit_rate:7.2%} "
            f"{one.preemptions:10} {one.rejections:9}",
            flush=True,
        )


def print_block_size(size: int, one: Capacity, times: dict[int, float]) -> None:
    """One line on one block size."""
    time = f"{times[size]:.1f} us" if size in times else "-"
    print(
        f"  block {size:>3}: tail waste {one.tail_waste:7.3%}, hits {one.hit_rate:6.2%}, "
        f"mean concurrency {one.mean_concurrency:7.1f}, decode {DECODE_CASE} {time}",
        flush=True,
    )


def print_hits(rows: Sequence[Hits]) -> None:
    """Hit rates of one trace and pool."""
    for row in rows:
        print(
            f"{row.trace}, {row.num_blocks} blocks of {row.block_size}: {row.name:<8} hits "
            f"{row.hit_rate:7.3%}, more than ours in {row.requests_more} requests, fewer in "
            f"{row.requests_fewer}",
            flush=True,
        )


def print_speeds(rows: Sequence[Speed]) -> None:
    """Times of one trace, ours first."""
    for row in rows:
        ratio = row.us_per_request / rows[0].us_per_request
        print(
            f"{row.trace}, {row.what}, block {row.block_size}: {row.name:<8} "
            f"{row.us_per_operation:8.2f} us an operation, {row.us_per_request:9.1f} us a request, "
            f"{ratio:.2f}x ours",
            flush=True,
        )


def bars(traces: Sequence[TraceResult], hits: Sequence[Hits], speeds: Sequence[Speed]) -> list[Bar]:
    """Every figure to reach, met or not."""
    found = []
    for one in traces:
        paging, contiguous = one.policies[0], one.policies[1]
        if one.trace.startswith("azure"):
            waste = paging.tail_waste
            name = f"tail waste, block {BLOCK_SIZE}, {one.trace}"
            found.append(Bar(name, "<= 1.5 % of used tokens", waste, waste <= MAX_TAIL_WASTE))
        gain = paging.mean_concurrency / contiguous.mean_concurrency
        name = f"concurrency against contiguous at max length, {one.trace}"
        found.append(Bar(name, ">= 2", gain, gain >= MIN_CONCURRENCY))
    for ours in (row for row in hits if row.name == "pagegen"):
        peer = [r for r in hits if _key(r) == _key(ours) and r.name == "vllm"]
        gap = ours.hit_rate - peer[0].hit_rate if peer else None
        name = f"prefix hit rate minus vLLM's, {ours.trace}, {ours.num_blocks} blocks"
        found.append(Bar(name, ">= 0", gap, gap >= 0 if gap is not None else None))
    for base in (row for row in speeds if row.name == "pagegen"):
        peers = [r for r in speeds if _what(r) == _what(base) and r.name != "pagegen"]
        ratio = peers[0].us_per_request / base.us_per_request if peers else None
        peer_name = "vLLM's manager" if base.what == "manager" else "SGLang's tree"
        name = f"speed against {peer_name}, {base.trace}, block {base.block_size}"
        found.append(Bar(name, ">= 2", ratio, ratio >= MIN_SPEED if ratio is not None else None))
    return found


def _key(row: Hits) -> tuple[str, int, int]:
    return row.trace, row.num_blocks, row.block_size


def _what(row: Speed) -> tuple[str, str, int]:
    return row.trace, row.what, row.block_size


def print_bars(found: Sequence[Bar]) -> None:
    """One line a bar."""
    print()
    for bar in found:
        value = "peer missing" if bar.value is None else f"{bar.value:.4g}"
        verdict = {True: "met", False: "LOST", None: "-"}[bar.met]
        print(f"{verdict:<5} {bar.what}: {value} (wanted {bar.wanted})")


def to_json(
    where: dict[str, Any],
    settings: dict[str, Any],
    traces: Sequence[TraceResult],
    hits: Sequence[Hits],
    speeds: Sequence[Speed],
    missing: Missing,
) -> dict[str, Any]:
    """Everything, missing peers included."""
    return {
        "environment": where,
        "settings": settings,
        "decode_us_by_block_size": decode_times(),
        "traces": [asdict(one) for one in traces],
        "hits": [asdict(one) for one in hits],
        "speeds": [asdict(one) for one in speeds],
        "missing_peers": missing,
        "bars": [asdict(bar) for bar in bars(traces, hits, speeds)],
    }
