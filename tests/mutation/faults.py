"""Calls with one fault each, and what a checked variant must report of it.

It knows the meaning of the arguments and no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagegen import cases
from pagegen.cases import Case
from pagegen.plan import Kernel
from pagegen.spec import Spec
from tests.cache_ops import BAD_BLOCK, IS_NAN, nearest_nan, token_rows
from tests.kernels.specs import shape_of

Q, K, V = 0, 1, 2


@dataclass(frozen=True)
class Fault:
    """A call, and the reports of which one must be made."""

    name: str
    case: Case
    reports: tuple[tuple[int, int, int, int], ...]
    finite: bool = False  # results are numbers all the same
    same_as: Case | None = None  # and those of this call


def faults(spec: Spec, kernel: Kernel) -> Iterator[Fault]:
    """Bad block ids at either end, NaN in q, K and V, each in the middle of nothing special."""
    length, q_lens = 150 + spec.block_size, [1, 1, 1]
    if kernel == "prefill":
        length, q_lens = 100 + spec.block_size, [3, 39, 33]
    lengths = [20, length, 33]
    case = cases.make_case(shape_of(spec), "faulty", lengths, q_lens, seed=21)
    first = max(length - q_lens[1] + 1 - spec.window, 0) if spec.window else 0
    columns = sorted({first // spec.block_size, (length - 1) // spec.block_size})
    num_blocks = case.k_cache.shape[0]
    for column in columns:
        for bad in (-1, num_blocks) if column == columns[0] else (2**31 - 1,):
            yield Fault(
                f"block id {bad} in column {column}", with_id(case, 1, column, bad),
                ((BAD_BLOCK, 1, column, bad),), finite=True,
                same_as=None if spec.window or column else without_first_block(spec, case, 1),
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
        for token, lane in ((first, 0), (length - 7, 8), (length - 1, -1)):
            yield Fault(
                f"NaN in {'qkv'[what]} of token {token}, lane {lane}",
                with_nan(spec, case, what, token, lane),
                ((IS_NAN, 1, token, what),),
            )
    infinite = torch.full_like(case.v_cache, math.inf)
    endless = replace(case, v_cache=torch.where(case.v_cache.isnan(), case.v_cache, infinite))
    yield Fault("V is infinite", endless, ((0, 0, 0, 0),))
    start = case.cu_seqlens_q.tolist()
    for seq, row, head, lane in ((2, start[3] - 1, -1, -1), (1, start[1], 0, 0), (0, 0, 1, 8)):
        q = case.q.clone()
        nearest_nan(q[row, head, lane])
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


def without_first_block(spec: Spec, case: Case, seq: int) -> Case:
    """The case with one sequence that begins a block later; its tokens keep their distances."""
    lens = case.seq_lens.clone()
    lens[seq] -= spec.block_size
    if isinstance(case.lookup, tuple):
        indptr = case.lookup[0].clone()
        indptr[seq] += 1  # an entry more for the sequence before, which does not use it
        return replace(case, seq_lens=lens, lookup=(indptr, case.lookup[1]))
    table = case.lookup.clone()
    table[seq, :-1] = case.lookup[seq, 1:]
    return replace(case, seq_lens=lens, lookup=table)


def with_nan(spec: Spec, case: Case, what: int, token: int, lane: int) -> Case:
    """The case with a NaN in K or V of the last head of one token of sequence 1."""
    cache = (case.k_cache if what == K else case.v_cache).clone()
    block, offset = divmod(token, spec.block_size)
    nearest_nan(token_rows(cache, spec)[int(entries(case, 1)[block]), offset, -1, lane])
    return replace(case, k_cache=cache) if what == K else replace(case, v_cache=cache)
