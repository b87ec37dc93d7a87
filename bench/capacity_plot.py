"""The figures of bench_capacity in one picture; needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.capacity_report import TraceResult, decode_times
from bench.errors import UsageError


def plot(traces: Sequence[TraceResult], path: Path) -> None:
    """Concurrency by policy; tail waste, hit rate and decode time by block size: a PNG."""
    try:
        matplotlib: Any = import_module("matplotlib")
    except ImportError as error:
        raise UsageError(f"--plot: {error}; pip install '.[bench]'") from error
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4))
    _draw_policies(left, traces)
    for one in traces:
        sizes = sorted(one.block_sizes)
        waste = [100 * one.block_sizes[size].tail_waste for size in sizes]
        hits = [100 * one.block_sizes[size].hit_rate for size in sizes]
        middle.plot(sizes, waste, marker="o", label=one.trace)
        right.plot(sizes, hits, marker="o", label=one.trace)
    middle.axvline(16, color="grey", linewidth=0.8)
    middle.set(xscale="log", yscale="log", xlabel="block size", ylabel="tail waste, % of used")
    middle.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    middle.legend(fontsize=7)
    right.set(xscale="log", xlabel="block size", ylabel="prefix hits, % of prompt tokens")
    right.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    times = decode_times()
    if times:
        beside = right.twinx()
        beside.plot(sorted(times), [times[s] for s in sorted(times)], "k^--", label="decode, H200")
        beside.set(ylabel="decode 64 x 8k, us", ylim=(0, 1.3 * max(times.values())))
        beside.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def _draw_policies(axes: Any, traces: Sequence[TraceResult]) -> None:
    names = [one.policy for one in traces[0].policies]
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [index + number * width for index in range(len(traces))]
        means = [one.policies[number].mean_concurrency for one in traces]
        axes.bar(places, means, width, label=name)
    axes.set(yscale="log", ylabel="mean concurrent requests")
    axes.set_xticks(range(len(traces)), [one.trace for one in traces], rotation=15, fontsize=7)
    axes.legend(fontsize=7)
