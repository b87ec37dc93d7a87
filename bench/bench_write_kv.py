"""How close does writing new K and V into their blocks come to the bandwidth roof?

Two yardsticks: torch's own indexed copy, and a plain copy of the same bytes in one piece, which no
scatter can beat. Results are compared bit for bit.
python -m bench.bench_write_kv --package generated/llama3_8b
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from bench import report
from bench.cases import WRITE_KV, Case, select
from bench.errors import run_script
from bench.options import Options, parse_options
from bench.package import Package, find_package
from bench.peers import Run, Setup
from bench.runner import (
    OURS,
    Contestant,
    Field,
    Prepared,
    Result,
    Row,
    failure,
    gather_field,
    release,
    run_together,
)
from bench.tensors import DTYPES

YARDSTICK = "torch"
COPY = "plain copy"


class Writes:
    """New K and V, the slots they go to, and what both caches must hold afterwards."""

    def __init__(self, case: Case, seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        made = partial(torch.randn, dtype=DTYPES[case.dtype], device="cuda", generator=generator)
        self.shape = (case.num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
        new = (case.num_tokens, case.num_kv_heads, case.head_dim)
        self.k, self.v = made(new), made(new)
        num_slots = case.num_blocks * case.block_size
        slots = torch.randperm(num_slots, device="cuda", generator=generator)
        self.slots = slots[: case.num_tokens].contiguous()

    def new_caches(self) -> Tensor:
        """[2, num_blocks, block_size, num_kv_heads, head_dim]: K and V, all zeros."""
        return torch.zeros((2, *self.shape), dtype=self.k.dtype, device="cuda")

    def scatter(self, caches: Tensor) -> Tensor:
        """torch's way to write."""
        rows = caches.flatten(1, 2)
        rows[0].index_copy_(0, self.slots, self.k)
        rows[1].index_copy_(0, self.slots, self.v)
        return caches

    def error(self, result: Tensor) -> float:
        """0 if both caches, or a plain copy of K and V, are exactly right, else infinite."""
        if result.dim() == 4:
            expected = torch.stack([self.k, self.v])
        else:
            expected = self.scatter(self.new_caches())
        return 0.0 if torch.equal(result, expected) else float("inf")


def prepare_torch(writes: Writes) -> Run:
    """torch's indexed copy."""
    return partial(writes.scatter, writes.new_caches())


def prepare_copy(writes: Writes) -> Run:
    """The same bytes read and written in one piece."""
    source = torch.stack([writes.k, writes.v])  # [2, num_tokens, num_kv_heads, head_dim]
    return partial(torch.empty_like(source).copy_, source)


def prepare_ours(writes: Writes, package: Package, backend: str, variant: str) -> Run:
    """One variant under test."""
    caches = writes.new_caches()
    places = (package.cache(caches[0]), package.cache(caches[1]))
    chosen = {"backend": backend, "variant": variant}

    def run() -> Tensor:
        package.ops.write_kv(writes.k, writes.v, *places, writes.slots, **chosen)
        return caches

    return run


def prepare(case: Case, field: Field, options: Options) -> Prepared:
    """Inputs and contestants of a case."""
    writes = Writes(case, options.seed)
    contestants = [
        Contestant(YARDSTICK, Setup("index_copy_", partial(prepare_torch, writes))),
        Contestant(COPY, Setup("of the same bytes", partial(prepare_copy, writes))),
    ]
    failures: list[Result] = []
    package, reason = find_package(field.packages, case)
    if package is None:
        failures.append(failure(OURS, "", f"no package fits: {reason}"))
    else:
        for backend, variant in package.variants("write_kv", options.backends, options.variants):
            ready = partial(prepare_ours, writes, package, backend, variant)
            contestants.append(Contestant(OURS, Setup(f"{backend}/{variant}", ready)))
    return Prepared(case, tuple(contestants), tuple(failures), writes.error)


def run_one(case: Case, field: Field, options: Options) -> Row:
    """One case; its memory is free again afterwards."""
    return run_together([prepare(case, field, options)], options.repeats)[0]


def main() -> None:
    """Run the rows asked for."""
    options = parse_options(__doc__ or "")
    cases = select(WRITE_KV, options.rows)
    environment, roofs = report.begin(options)
    field = gather_field(options)
    rows = []
    for case in cases:
        rows.append(run_one(case, field, options))
        report.print_row(rows[-1], roofs)
        release()
    report.finish("write-kv", rows, options, environment, roofs)


if __name__ == "__main__":
    run_script(main)
