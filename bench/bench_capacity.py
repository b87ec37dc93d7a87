"""What does paging buy: how many requests fit, what is wasted, what is found again, how fast?

Real traces in a closed loop (bench/capacity.py says how), with paging and with contiguous memory
of the same size; every block size; and the same traces on the block managers of vLLM and SGLang.
python -m bench.bench_capacity --traces DIR --peers DIR --plot bench/results/capacity.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bench import capacity_report as report
from bench.block_peers import Hits, Missing, Speed, compare_hits, time_indexes, time_managers
from bench.capacity import Capacity, contiguous, paged
from bench.capacity_plot import plot
from bench.errors import UsageError, run_script
from bench.peers import add_folder
from bench.report import RESULTS
from bench.traces import NAMES, Request, load_trace, longest

NUM_BLOCKS = 65536  # of 16 tokens: what an H200 has beside an 8B model with 128 KiB a token
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SPEED_REQUESTS = 400  # the first ones of a trace; a manager's life of a token is the same later
INDEX_REQUESTS = 4000
PEER_TRACES = ("mooncake_conversation", "mooncake_synthetic")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, required=True, metavar="DIR", help="folder with the four traces")
    add("--only", type=_names, default=NAMES, metavar="NAMES", help="these traces, with commas")
    add("--blocks", type=int, default=NUM_BLOCKS, help="KV memory, in blocks of 16 tokens")
    add("--block-sizes", type=_sizes, default=BLOCK_SIZES, help="with commas; none below 1")
    add("--peers", type=Path, action="append", default=[], metavar="DIR", help="may be repeated")
    add("--json", type=Path, metavar="PATH", help="report; bench/results/ if left out")
    add("--plot", type=Path, metavar="PATH", help="PNG")
    add("--commit", default="", help="of the tree, where git cannot tell")
    return parser.parse_args(arguments)


def power_of_two(request: Request) -> int:
    """The prompt, and the next power of two of the output: a guess that is never too small."""
    return request.num_prompt + (1 << (request.num_output - 1).bit_length())


def run_trace(
    name: str, requests: tuple[Request, ...], num_slots: int, block_sizes: Sequence[int]
) -> report.TraceResult:
    """All closed loops of one trace."""
    most = longest(requests)
    paging = paged(requests, num_slots, report.BLOCK_SIZE)
    result = report.TraceResult(
        trace=name,
        requests=len(requests),
        longest=most,
        policies=(
            replace(paging, policy=f"paging, block {report.BLOCK_SIZE}"),
            contiguous(requests, num_slots, "contiguous, max", lambda _: most),
            contiguous(requests, num_slots, "contiguous, pow2", power_of_two),
            contiguous(requests, num_slots, "contiguous, oracle", lambda r: r.num_tokens),
        ),
        block_sizes={},
    )
    report.print_policies(result)
    times = report.decode_times()
    found: dict[int, Capacity] = {}
    for size in block_sizes:
        is_done = size == report.BLOCK_SIZE
        found[size] = paging if is_done else paged(requests, num_slots, size)
        report.print_block_size(size, found[size], times)
    return replace(result, block_sizes=found)


def main() -> None:
    """Run everything that was asked for."""
    given = parse()
    for folder in given.peers:
        add_folder(folder)
    unknown = set(given.only) - set(NAMES)
    if unknown or not all(1 <= size <= 256 for size in given.block_sizes) or given.blocks < 2:
        raise UsageError(f"traces are {', '.join(NAMES)}; block sizes 1 to 256; blocks 2 or more")
    where = report.environment(given.commit)
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    traces = {name: load_trace(given.traces, name) for name in given.only}
    num_slots = given.blocks * report.BLOCK_SIZE
    torch.set_num_threads(1)
    # Speed first: nothing else has filled the heap yet.
    missing: Missing = {}
    speeds: list[Speed] = []
    hits: list[Hits] = []
    for name in (name for name in PEER_TRACES if name in traces):
        requests = traces[name]
        for size in (report.BLOCK_SIZE, 1):
            pool = num_slots // size
            timed = time_indexes(name, requests[:INDEX_REQUESTS], pool, size, missing)
            report.print_speeds(timed)
            speeds += timed
        some = requests[:SPEED_REQUESTS]
        timed = time_managers(name, some, given.blocks, report.BLOCK_SIZE, missing)
        report.print_speeds(timed)
        speeds += timed
        for pool in (given.blocks, given.blocks // 4):
            rows = compare_hits(name, requests, pool, report.BLOCK_SIZE, missing)
            report.print_hits(rows)
            hits += rows
    results = [
        run_trace(name, requests, num_slots, given.block_sizes) for name, requests in traces.items()
    ]
    for name, reason in missing.items():
        print(f"{name} is missing: {reason}")
    report.print_bars(report.bars(results, hits, speeds))
    settings = {
        "slots": num_slots,
        "speed_requests": SPEED_REQUESTS,
        "index_requests": INDEX_REQUESTS,
    }
    data = report.to_json(where, settings, results, hits, speeds, missing)
    path = given.json or RESULTS / "capacity.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"written to {path}")
    if given.plot is not None:
        plot(results, given.plot)


if __name__ == "__main__":
    run_script(main)
