"""Calls with one fault each, and what a checked variant must report of it.

It knows the meaning of the arguments and no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from pagegen import cases
from pagegen.cases import Case
from pagegen.plan import Kernel
from pagegen.spec import Spec
from tests.cache_ops import BAD_BLOCK, IS_NAN, token_rows
from tests.interpret.harness import shape_of

Q, K, V = 0, 1, 2


@dataclass(frozen=True)
class Fault:
    """A call, and the reports of which one must be made."""

    name: str
    case: Case
    reports: tuple[tuple[int, int, int, int], ...]
    finite: bool = False  # results are numbers all the same


def faults(spec: Spec, kernel: Kernel) -> Iterator[Fault]:
    """Bad block ids at either end, NaN in q, K and V, each in the middle of nothing special."""
    length = 150 + spec.block_size
    lengths, q_lens = [20, length, 33], [1, 1, 1]
    if kernel == "prefill":
        q_lens = [3, 40, 33]
    case = cases.make_case(shape_of(spec), "faulty", lengths, q_lens, seed=21)
    first = max(length - q_lens[1] + 1 - spec.window, 0) if spec.window else 0
    columns = sorted({first // spec.block_size, (length - 1) // spec.block_size})
    num_blocks = case.k_cache.shape[0]
    for column in columns:
        for bad in (-1, 2**31 - 1, num_blocks):
            yield Fault(
                f"block id {bad} in column {column}", with_id(case, 1, column, bad),
                ((BAD_BLOCK, 1, column, bad),), finite=True,
            )  # fmt: skip
    none, every = case, range(first // spec.block_size, (length - 1) // spec.block_size + 1)
    for column in every:
        none = with_id(none, 1, column, -1)
    reports = tuple((BAD_BLOCK, 1, column, -1) for column in every)
    yield Fault("no block id in range", none, reports, finite=True)
    if first >= spec.block_size:
        freed = with_id(case, 1, first // spec.block_size - 1, -1)
        yield Fault("a freed block before the window", freed, ((0, 0, 0, 0),))
    for what in (K, V):
        for token in (first, length - 1, length - 70 if not spec.window else length - 7):
            for lane in (0, -1):
                yield Fault(
                    f"NaN in {'qkv'[what]} of token {token}, lane {lane}",
                    with_nan(spec, case, what, token, lane),
                    ((IS_NAN, 1, token, what),),
                )
    start = case.cu_seqlens_q.tolist()
    for seq, row, head, lane in ((2, start[3] - 1, -1, -1), (1, start[1], 0, 0), (0, 0, 1, 8)):
        q = case.q.clone()
        q[row, head, lane] = math.nan
        position = lengths[seq] - q_lens[seq] + row - start[seq]
        yield Fault(f"NaN in q row {row}", replace(case, q=q), ((IS_NAN, seq, position, Q),))


def entries(case: Case, seq: int) -> Tensor:
    """The block ids of one sequence, a view."""
    if isinstance(case.lookup, tuple):
        return case.lookup[1][int(case.lookup[0][seq]) :]
    return case.lookup[seq]


def with_id(case: Case, seq: int, column: int, block_id: int) -> Case:
    """The case with another block id."""
    lookup = case.lookup
    if isinstance(lookup, tuple):
        copied = replace(case, lookup=(lookup[0], lookup[1].clone()))
    else:
        copied = replace(case, lookup=lookup.clone())
    entries(copied, seq)[column] = block_id
    return copied


def with_nan(spec: Spec, case: Case, what: int, token: int, lane: int) -> Case:
    """The case with a NaN in K or V of the last head of one token of sequence 1."""
    cache = (case.k_cache if what == K else case.v_cache).clone()
    block, offset = divmod(token, spec.block_size)
    token_rows(cache, spec)[int(entries(case, 1)[block]), offset, -1, lane] = math.nan
    return replace(case, k_cache=cache) if what == K else replace(case, v_cache=cache)
