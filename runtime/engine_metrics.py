"""What an engine counts, beside its block manager's books.

It changes nothing: it reads, and writes text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.metrics import Counters, Gauges, prometheus
from pagegen.runtime.scheduler import Scheduler

EVERY = 16  # steps between two looks at the pool, which take a look at every sequence


@dataclass(slots=True)
class Totals:
    """Events since the start. They only grow."""

    steps: int = field(default=0, metadata={"help": "steps with work"})
    requests: int = field(default=0, metadata={"help": "requests taken"})
    finished_requests: int = field(
        default=0, metadata={"help": "requests that ended by themselves"}
    )
    aborted_requests: int = field(default=0, metadata={"help": "requests aborted, or failed"})
    prompt_tokens: int = field(default=0, metadata={"help": "tokens of prompts taken"})
    generated_tokens: int = field(default=0, metadata={"help": "tokens sampled"})
    computed_tokens: int = field(default=0, metadata={"help": "tokens run through the model"})
    busy_seconds: float = field(default=0.0, metadata={"help": "time in steps"})
    used_slot_looks: int = field(default=0, metadata={"help": "used slots, at every look"})
    waste_slot_looks: int = field(default=0, metadata={"help": "wasted slots, at every look"})

    def look(self, manager: BlockManager) -> None:
        """Add up the pool's waste, now and then."""
        if self.steps % EVERY == 1:
            gauges = manager.gauges()
            self.used_slot_looks += gauges.used_slots
            self.waste_slot_looks += gauges.tail_waste_tokens


@dataclass(frozen=True)
class EngineMetrics:
    """An engine at one moment. Rates: tail_waste is empty slots over used ones, on average of all
    looks; prefix_hit_rate is cached over looked-up prompt tokens; tokens per second of steps."""

    waiting: int
    running: int
    tokens_per_s: float
    prefix_hit_rate: float
    tail_waste: float
    totals: Totals
    gauges: Gauges
    counters: Counters

    def prometheus(self) -> str:
        """All of it as Prometheus text."""
        lines = []
        for name in ("waiting", "running", "tokens_per_s", "prefix_hit_rate", "tail_waste"):
            lines += _metric(
                f"pagegen_{name}", "gauge", name.replace("_", " "), getattr(self, name)
            )
        for name, value in asdict(self.totals).items():
            text = self.totals.__dataclass_fields__[name].metadata["help"]
            lines += _metric(f"pagegen_{name}_total", "counter", text, value)
        return "\n".join(lines) + "\n" + prometheus(self.gauges, self.counters)


def _metric(name: str, kind: str, text: str, value: float) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]


def read_metrics(scheduler: Scheduler, totals: Totals) -> EngineMetrics:
    """An engine's state now. O(number of sequences)."""
    manager = scheduler.manager
    counters = manager.counters
    return EngineMetrics(
        waiting=len(scheduler.waiting),
        running=len(scheduler.running),
        tokens_per_s=_share(totals.generated_tokens, totals.busy_seconds),
        prefix_hit_rate=_share(counters.prefix_hits_tokens, counters.prefix_queries_tokens),
        tail_waste=_share(totals.waste_slot_looks, totals.used_slot_looks),
        totals=totals,
        gauges=manager.gauges(),
        counters=counters,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
