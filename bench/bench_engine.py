"""How many tokens a second does the engine serve, beside transformers' own continuous batching?

64 requests at once, prompts of mixed length, greedy, every answer of the same length; both in one
process, in turns. The aim is 3 times the tokens per second. The second question needs no GPU and no
model: how long do the scheduler and the batch builder take for a step of 256 running sequences? The
aim is 1 ms. python -m bench.bench_engine [--host-only]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench import report
from bench.errors import UsageError, run_script
from pagegen.errors import PagegenError
from pagegen.runtime.batch_builder import BatchBuilder
from pagegen.runtime.block_manager import BlockManager
from pagegen.runtime.executor import records
from pagegen.runtime.limits import Limits
from pagegen.runtime.preemption import Costs
from pagegen.runtime.scheduler import Scheduler

HOST_AIM_MS, SPEED_AIM = 1.0, 3.0
NUM_SEQS, BLOCK_SIZE = 256, 16
CONTEXTS = (512, 2048, 8192)
STEPS = 400


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--host-only", action="store_true", help="no GPU and no model")
    add("--package", type=Path, default=Path("generated/smollm2_135m"))
    add("--model", default="smollm2-135m-instruct", help="a name, a folder or a .gguf file")
    add("--dtype", default="bf16", help="of the package")
    add("--num-requests", type=int, default=64)
    add("--new-tokens", type=int, default=256)
    add("--prompt-tokens", type=int, default=512, help="of the longest prompt")
    add("--repeats", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--commit", default="", help="of the tree, where git cannot tell")
    add("--json", type=Path, metavar="PATH", help="report; bench/results/ if left out")
    return parser.parse_args()


def host_times(context: int) -> dict[str, float]:
    """Milliseconds of a step of NUM_SEQS decoding sequences, by part: medians."""
    longest = context + STEPS + 64
    num_blocks = NUM_SEQS * (-(-longest // BLOCK_SIZE) + 1)
    limits = Limits(8192, NUM_SEQS, longest)
    scheduler = Scheduler(BlockManager(num_blocks, BLOCK_SIZE), limits, Costs(1))
    builder = BatchBuilder(
        block_size=BLOCK_SIZE, max_num_seqs=NUM_SEQS, max_num_tokens=8192, max_model_len=longest
    )
    rng = np.random.default_rng(0)
    for number in range(NUM_SEQS):
        # Lengths that differ, so that the sequences do not all need a block in the same step.
        prompt = rng.integers(0, 50_000, context - int(rng.integers(0, 64)))
        scheduler.submit(str(number), prompt, max_new_tokens=longest)
    clock = time.perf_counter
    samples: list[tuple[float, ...]] = []
    while len(samples) < STEPS // 2:
        begin = clock()
        step = scheduler.schedule()
        scheduled = clock()
        builder.build(records(step.chunks))
        built = clock()
        scheduler.update(step, {chunk.job: 7 for chunk in step.chunks if chunk.samples})
        updated = clock()
        if len(step.chunks) == NUM_SEQS and all(chunk.num_tokens == 1 for chunk in step.chunks):
            samples.append((scheduled - begin, built - scheduled, updated - built))
    parts = [median(column) * 1e3 for column in zip(*samples, strict=True)]
    least = min(one[0] + one[1] for one in samples) * 1e3
    return {
        "context": context,
        "schedule_ms": parts[0],
        "build_ms": parts[1],
        "update_ms": parts[2],
        "schedule_and_build_ms": median(one[0] + one[1] for one in samples) * 1e3,
        "least_ms": least,
    }


def measure_host() -> list[dict[str, float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = [host_times(context) for context in CONTEXTS]
    torch.set_num_threads(threads)
    print(f"{NUM_SEQS} running sequences, ms a step on one core (aim {HOST_AIM_MS})")
    for row in rows:
        print(
            f"context {row['context']:>6} | schedule {row['schedule_ms']:.2f} | build "
            f"{row['build_ms']:.2f} | both {row['schedule_and_build_ms']:.2f}, at best "
            f"{row['least_ms']:.2f} | update {row['update_ms']:.2f}",
            flush=True,
        )
    return rows


Serve = Callable[[list[list[int]], int], list[list[int]]]


def our_way(given: argparse.Namespace) -> Serve:
    """The engine, its graphs captured. A prefix cache would make later rounds unlike the first."""
    from pagegen.runtime.engine import Engine
    from pagegen.runtime.models.checkpoint import load_model
    from pagegen.runtime.request import Request

    engine = Engine(
        given.package,
        load_model(given.model, dtype=given.dtype, device="cuda"),
        max_num_seqs=given.num_requests,
        memory_fraction=0.4,  # the other way needs memory too
        prefix_caching=False,
    )
    engine.warm_up()

    def serve(prompts: list[list[int]], count: int) -> list[list[int]]:
        handles = engine.generate(
            [Request(one, max_new_tokens=count, stop_token_ids=()) for one in prompts]
        )
        return [handle.outputs[0].token_ids for handle in handles]

    return serve


def their_way(given: argparse.Namespace) -> Serve:
    """generate_batch of transformers on the same weights, with its own choice of kernels."""
    import transformers

    from pagegen.runtime.models.checkpoint import load_model

    model = load_model(given.model, dtype=given.dtype, device="cuda").model
    config = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)

    def serve(prompts: list[list[int]], count: int) -> list[list[int]]:
        config.max_new_tokens = count
        found = model.generate_batch(prompts, generation_config=config)
        ordered = {tuple(one.prompt_ids): one.generated_tokens for one in found.values()}
        return [list(ordered[tuple(prompt)]) for prompt in prompts]

    return serve


def measure_serving(given: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of both, the best of some rounds in turns; a failure is recorded."""
    rng = np.random.default_rng(given.seed)
    lengths = rng.integers(given.prompt_tokens // 16, given.prompt_tokens + 1, given.num_requests)
    prompts = [rng.integers(100, 40_000, int(length)).tolist() for length in lengths]
    speeds: dict[str, list[float]] = {}
    texts: dict[str, list[list[int]]] = {}
    reasons: dict[str, str] = {}
    ways: dict[str, Serve] = {}
    for name, make in (("pagegen", our_way), ("transformers", their_way)):
        try:
            ways[name] = make(given)
            ways[name](prompts, 8)
        except Exception as problem:
            if isinstance(problem, PagegenError):
                raise UsageError(str(problem)) from problem
            reasons[name] = f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:400]
            ways.pop(name, None)
    for _ in range(given.repeats):
        for name, serve in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            texts[name] = serve(prompts, given.new_tokens)
            elapsed = time.perf_counter() - begin
            speeds.setdefault(name, []).append(sum(map(len, texts[name])) / elapsed)
    best = {name: max(taken) for name, taken in speeds.items()}
    for name, speed in best.items():
        print(f"{name:<14} {speed:9.0f} tokens/s  of {[round(one) for one in speeds[name]]}")
    for name, reason in reasons.items():
        print(f"{name:<14} failed: {reason}")
    found: dict[str, Any] = {"tokens_per_s": speeds, "reasons": reasons}
    if len(best) == 2:
        found["ratio"] = best["pagegen"] / best["transformers"]
        pairs = zip(texts["pagegen"], texts["transformers"], strict=True)
        found["same_first_tokens"] = sum(one[:8] == other[:8] for one, other in pairs)
        print(f"{found['ratio']:.2f} times transformers (aim {SPEED_AIM}); first 8 tokens equal in")
        print(f"{found['same_first_tokens']} of {given.num_requests} answers")
    return found


def main() -> None:
    """Measure the host, and serving unless it is left out."""
    given = parse()
    environment = report.read_environment(given.commit)
    print(", ".join(f"{name} {value}" for name, value in asdict(environment).items()))
    data: dict[str, Any] = {"environment": asdict(environment), "host": measure_host()}
    if not given.host_only:
        if not torch.cuda.is_available():
            raise UsageError("no GPU\n  to fix: --host-only")
        data["serving"] = measure_serving(given)
    if given.json is not None or not given.host_only:
        print(f"written to {report.write_report(data, 'engine', given.json)}")


if __name__ == "__main__":
    run_script(main)
