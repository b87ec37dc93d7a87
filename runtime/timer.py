"""Times work on a CUDA device: the replay of a captured graph between two events, with cold caches.

It knows no kernel and no case: what a time means, and whether the result is right, is the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 256 * 1024 * 1024  # larger than any L2 cache
WARM_UP_CALLS = 3
DISCARDED_ROUNDS = 2  # the host is not yet ahead of the device in the first ones

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One callable's times, in microseconds."""

    median_us: float
    low_us: float  # 20th percentile
    high_us: float  # 80th percentile
    repeats: int

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        """The median and spread of samples in microseconds. Raises ValueError without any."""
        if not samples:
            raise ValueError("no samples")
        ordered = sorted(samples)
        return Timing(
            median_us=_quantile(ordered, 0.5),
            low_us=_quantile(ordered, 0.2),
            high_us=_quantile(ordered, 0.8),
            repeats=len(ordered),
        )


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    weight = position - below
    return ordered[below] * (1 - weight) + ordered[above] * weight


class CacheFlush:
    """Empties the L2 cache by reading a large buffer.

    A flush that writes would leave dirty lines, which the timed work then pays to write back.
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        import torch

        place = torch.device("cuda") if device is None else torch.device(device)
        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device=place)
        self._total = torch.zeros((), dtype=torch.float32, device=place)

    def __call__(self) -> None:
        import torch

        torch.sum(self._buffer, dim=0, out=self._total)


def capture(call: Call, *, warm_up: int = WARM_UP_CALLS) -> Callable[[], None]:
    """A CUDA graph of one call, as a function that replays it on the current stream.

    The call must not synchronise the host. What it allocates lives as long as the graph.
    """
    import torch

    cuda: Any = torch.cuda  # parts of it are not typed
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(warm_up):
            call()
    cuda.current_stream().wait_stream(side)
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        call()
    replay: Callable[[], None] = graph.replay
    return replay


def measure(
    call: Call, *, repeats: int = 25, graph: bool = True, flush: Callable[[], None] | None = None
) -> Timing:
    """Device time of one call. See measure_interleaved."""
    return measure_interleaved({"": call}, repeats=repeats, graph=graph, flush=flush)[""]


def measure_interleaved(
    calls: Mapping[str, Call],
    *,
    repeats: int = 25,
    graph: bool = True,
    flush: Callable[[], None] | None = None,
) -> dict[str, Timing]:
    """Device times of several calls, taken in turns, so that drift hits all of them alike.

    graph: capture and replay each call; without it the host's launch gaps may show. flush: run
    before each replay, a CacheFlush if left out. Every second round runs in the opposite order.
    """
    import torch

    cuda: Any = torch.cuda  # parts of it are not typed
    clean = CacheFlush() if flush is None else flush
    replays = {name: capture(call) if graph else _warmed(call) for name, call in calls.items()}
    pairs: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}  # of events
    names = list(calls)
    for number in range(repeats + DISCARDED_ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            start = cuda.Event(enable_timing=True)
            end = cuda.Event(enable_timing=True)
            # Nothing waits here: the flush keeps the device busy while the host queues the replay.
            clean()
            start.record()
            replays[name]()
            end.record()
            if number >= DISCARDED_ROUNDS:
                pairs[name].append((start, end))
    cuda.synchronize()
    return {
        name: Timing.of([start.elapsed_time(end) * 1e3 for start, end in events])
        for name, events in pairs.items()
    }


def _warmed(call: Call) -> Call:
    for _ in range(WARM_UP_CALLS):
        call()
    return call


def measure_host(
    calls: Mapping[str, Call], *, repeats: int = 25, calls_per_repeat: int = 200
) -> dict[str, Timing]:
    """Host time of one call of each, taken in turns, in microseconds.

    The device must be faster than the host here, or a full launch queue would be timed.
    """
    import torch

    for call in calls.values():
        _warmed(call)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(repeats + DISCARDED_ROUNDS):
        for name in names if number % 2 == 0 else reversed(names):
            call = calls[name]
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls_per_repeat):
                call()
            elapsed = time.perf_counter() - start
            if number >= DISCARDED_ROUNDS:
                samples[name].append(elapsed / calls_per_repeat * 1e6)
    torch.cuda.synchronize()
    return {name: Timing.of(taken) for name, taken in samples.items()}
