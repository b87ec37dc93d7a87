"""Cases whose right answer is a plain number, and the calls that every one of them goes through.

With K = 0 every visible key weighs the same: out is the mean of the visible values, and lse the
logarithm of how many there are. It knows no kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from pagegen.cases import TOLERANCE, Case, lookup_of, paged
from pagegen.oracle import paged_attention
from pagegen.spec import Spec
from pagegen.verify import lse_fault, relative_error
from tests.kernels.calls import Result, run_decode, run_prefill
from tests.kernels.kernels import Kernels
from tests.kernels.specs import plan_of, shape_of

NOTHING = -math.inf  # the lse of a row that sees no key
GUARD = -7.0


@dataclass(frozen=True)
class Call:
    """A way to attention: a kernel, and for decode into how many parts sequences are cut."""

    kernel: Literal["decode", "prefill"]
    num_splits: int = 1
    variant: str = "default"

    def __str__(self) -> str:
        return self.kernel if self.num_splits == 1 else f"{self.kernel}-{self.num_splits}"

    def __call__(
        self, kernels: Kernels, spec: Spec, case: Case, *, out: Tensor | None = None
    ) -> Result:
        plan = plan_of(kernels, spec, self.kernel, self.variant)
        if self.kernel == "prefill":
            return run_prefill(kernels, plan, case, spec.layout, out=out)
        return run_decode(kernels, plan, case, spec.layout, num_splits=self.num_splits, out=out)


PREFILL = Call("prefill")
ONE_TOKEN_CALLS = (Call("decode"), Call("decode", 3), Call("decode", 8), PREFILL)
one_token = pytest.mark.parametrize("call", ONE_TOKEN_CALLS, ids=str)
two_kernels = pytest.mark.parametrize("call", ONE_TOKEN_CALLS[1::2], ids=str)


def positions(num_seqs: int, longest: int) -> Tensor:
    """V[token i] = i: out is the mean of the visible positions."""
    return torch.arange(float(longest)).reshape(1, longest, 1, 1).expand(num_seqs, -1, -1, -1)


def owners(num_seqs: int, longest: int) -> Tensor:
    """V = the sequence's index + 1: a wrong owner is a wrong number."""
    return torch.arange(1.0, num_seqs + 1).reshape(-1, 1, 1, 1).expand(-1, longest, -1, -1)


def known_case(
    spec: Spec,
    seq_lens: list[int],
    values: Tensor,  # broadcast to [num_seqs, longest, num_kv_heads, head_dim_v]
    *,
    q_lens: list[int] | None = None,  # default: one query token each
    q: float = 0.0,
    key: float = 0.0,
    sm_scale: float | None = None,
) -> Case:
    """q and K the same in every lane; what no sequence holds is NaN, unused ids are absurd."""
    shape = shape_of(spec)
    num_seqs, longest = len(seq_lens), max([*seq_lens, 1])
    q_lens = q_lens if q_lens is not None else [1] * num_seqs
    caches = []
    heads = (num_seqs, longest, spec.num_kv_heads)
    for tokens in (
        torch.full((*heads, spec.head_dim), key),
        values[:, :longest].expand(*heads, spec.head_dim_v),
    ):
        generator = torch.Generator().manual_seed(0)  # the same blocks for K and V
        cache, rows = paged(shape, tokens.to(shape.dtype), seq_lens, generator)
        caches.append(cache.transpose(1, 2).contiguous() if spec.layout == "HND" else cache)
    return Case(
        name="known",
        q=torch.full((sum(q_lens), spec.num_q_heads, spec.head_dim), q, dtype=shape.dtype),
        k_cache=caches[0],
        v_cache=caches[1],
        lookup=lookup_of(shape, rows),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32),
        sm_scale=spec.head_dim**-0.5 if sm_scale is None else sm_scale,
    )


def guarded(tokens: int, heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(memory, out): out is a transposed view with a guard band round every row."""
    memory = torch.full((heads + 2, tokens + 2, dim + 8), GUARD, dtype=dtype)
    return memory, memory[1:-1, 1:-1, :dim].transpose(0, 1)


def guard_is_intact(memory: Tensor, out: Tensor) -> bool:
    """Whether nothing but out was written."""
    rest = memory.clone()
    rest[1:-1, 1:-1, : out.shape[2]] = GUARD
    return bool((rest == GUARD).all())


def poisoned(case: Case, *, k: float, v: float) -> Case:
    """The case with other numbers where known_case and make_case leave NaN."""
    return replace(
        case,
        k_cache=torch.where(case.k_cache.isnan(), k, case.k_cache),
        v_cache=torch.where(case.v_cache.isnan(), v, case.v_cache),
    )


def with_table(case: Case, table: Tensor) -> Case:
    """The case with another block table."""
    return replace(case, lookup=table.to(torch.int32))


def table_of(case: Case) -> Tensor:
    """The block table, of a spec that looks blocks up in one."""
    assert isinstance(case.lookup, Tensor)
    return case.lookup


def same(one: Result, other: Result) -> bool:
    """Whether two results agree bit for bit; NaN equals nothing."""
    return bool((one.out == other.out).all()) and bool((one.lse == other.lse).all())


def check_rows(result: Result, out: list[float], lse: list[float], tolerance: float = 1e-5) -> None:
    """Every head and lane of row i of out is out[i]; of lse, lse[i]."""
    for row, (value, log) in enumerate(zip(out, lse, strict=True)):
        gap = float((result.out[row].double() - value).abs().max())
        assert gap <= tolerance * max(abs(value), 1.0), (row, result.out[row], value)
        if log == -math.inf:
            assert bool((result.lse[row] == log).all()), (row, result.lse[row])
        else:
            log_gap = float((result.lse[row].double() - log).abs().max())
            assert log_gap <= 1e-5 + 1e-6 * abs(log), (row, result.lse[row], log)


def reference(spec: Spec, case: Case) -> tuple[Tensor, Tensor]:
    """The oracle's out and lse."""
    return paged_attention(
        case.q, case.k_cache, case.v_cache, case.lookup, case.seq_lens, case.cu_seqlens_q,
        shape_of(spec).attention, case.sm_scale,
    )  # fmt: skip


def check_oracle(spec: Spec, case: Case, result: Result, what: str = "") -> None:
    """Compare with the oracle, as verify does."""
    out, lse = reference(spec, case)
    tolerance = TOLERANCE[str(case.q.dtype).removeprefix("torch.")]
    assert relative_error(result.out, out) <= tolerance, f"{case.name}, {what}"
    assert not lse_fault(result.lse, lse), f"{case.name}, {what}"
    assert result.fault == (0, 0, 0, 0), f"{case.name}, {what}"
