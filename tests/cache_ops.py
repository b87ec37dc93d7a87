"""write_kv, merge_states and copy_blocks of any Python-side backend, and what each must do.

It knows the meaning of the three ops and how a host calls them; a backend is a small class. Memory
that must not change is compared whole: pools are views with guard bands on every side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pagegen import oracle
from pagegen.cases import LSE_TOLERANCE, TOLERANCE
from pagegen.spec import Spec
from pagegen.verify import relative_error

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Fault = tuple[int, ...] | None  # kind, row, column, value
BAD_BLOCK, IS_NAN, BAD_SLOT = 1, 2, 3


class Ops(Protocol):
    """One backend's three ops for one spec, default or checked."""

    def write_kv(
        self, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, slot_mapping: Tensor
    ) -> Fault: ...

    def merge_states(
        self,
        out: Tensor,
        lse: Tensor,
        out_a: Tensor,
        lse_a: Tensor,
        out_b: Tensor,
        lse_b: Tensor,
    ) -> Fault: ...

    def copy_blocks(self, k_cache: Tensor, v_cache: Tensor, src_to_dst: Tensor) -> Fault: ...


def same(got: Tensor, want: Tensor) -> bool:
    """Equal bits, NaN included."""
    return torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def nearest_nan(element: Tensor) -> None:
    """Make a scalar view the NaN whose bits follow those of infinity."""
    element.fill_(math.inf)
    bits = torch.int16 if element.element_size() == 2 else torch.int32
    element.view(bits).add_(1)


@dataclass(frozen=True)
class Pool:
    """K and V of all blocks as views of one tensor with gaps between rows, heads and blocks."""

    memory: Tensor
    k: Tensor
    v: Tensor

    def clone(self) -> Pool:
        """The same views of other memory."""
        memory = self.memory.clone()
        k, v = (
            memory.as_strided(view.shape, view.stride(), view.storage_offset())
            for view in (self.k, self.v)
        )
        return Pool(memory, k, v)


def make_pool(spec: Spec, num_blocks: int, *, seed: int = 0) -> Pool:
    """Random numbers everywhere; K and V lie side by side in a row, as in packed pools."""
    axes = [spec.block_size, spec.num_kv_heads]
    if spec.layout == "HND":
        axes.reverse()
    width = spec.head_dim + spec.head_dim_v + 8
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(num_blocks + 1, axes[0] + 1, axes[1] + 1, width, generator=generator)
    memory = memory.to(TORCH[spec.dtype_kv])
    inner = memory[:num_blocks, : axes[0], : axes[1]]
    return Pool(
        memory,
        inner[..., : spec.head_dim],
        inner[..., spec.head_dim : spec.head_dim + spec.head_dim_v],
    )


def token_rows(cache: Tensor, spec: Spec) -> Tensor:
    """[num_blocks, block_size, num_kv_heads, dim] in either layout."""
    return cache.transpose(1, 2) if spec.layout == "HND" else cache


def new_kv(spec: Spec, num_tokens: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """K and V as slices of one fused qkv row, two rows longer than num_tokens."""
    generator = torch.Generator().manual_seed(seed)
    width = spec.num_kv_heads * (spec.head_dim + spec.head_dim_v) + 8
    fused = torch.randn(num_tokens + 2, width, generator=generator).to(TORCH[spec.dtype_query])
    split = spec.num_kv_heads * spec.head_dim
    end = split + spec.num_kv_heads * spec.head_dim_v
    heads = (num_tokens + 2, spec.num_kv_heads)
    return fused[:, :split].view(*heads, spec.head_dim), fused[:, split:end].view(
        *heads, spec.head_dim_v
    )


def check_write(
    ops: Ops, spec: Spec, slots: list[int], *, num_blocks: int = 5, seed: int = 0
) -> Fault:
    """Slots inside the cache hold their tokens, and no other byte changed."""
    pool, (k, v) = make_pool(spec, num_blocks, seed=seed), new_kv(spec, len(slots))
    want = pool.clone()
    for token, slot in enumerate(slots):
        if 0 <= slot < num_blocks * spec.block_size:
            block, offset = divmod(slot, spec.block_size)
            token_rows(want.k, spec)[block, offset] = k[token]
            token_rows(want.v, spec)[block, offset] = v[token]
    fault = ops.write_kv(pool.k, pool.v, k, v, torch.tensor(slots, dtype=torch.int64))
    assert same(pool.memory, want.memory)
    return fault


def check_copy(ops: Ops, spec: Spec, pairs: list[tuple[int, int]], *, num_blocks: int = 9) -> Fault:
    """Destinations equal their sources, and no other byte changed."""
    pool = make_pool(spec, num_blocks)
    want = pool.clone()
    for source, destination in pairs:
        if 0 <= source < num_blocks and 0 <= destination < num_blocks:
            want.k[destination] = pool.k[source]
            want.v[destination] = pool.v[source]
    table = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    fault = ops.copy_blocks(pool.k, pool.v, table)
    assert same(pool.memory, want.memory)
    return fault


@dataclass(frozen=True)
class State:
    """Attention over some keys."""

    out: Tensor  # [num_tokens, num_q_heads, head_dim_v]
    lse: Tensor  # [num_tokens, num_q_heads]


def make_state(spec: Spec, num_tokens: int, *, seed: int, gap: int = 0) -> State:
    """Random, in views with `gap` more heads and 8 * gap more elements than they show."""
    generator = torch.Generator().manual_seed(seed)
    heads, dim = spec.num_q_heads, spec.head_dim_v
    out = torch.randn(num_tokens, heads + gap, dim + 8 * gap, generator=generator)
    lse = torch.randn(heads + gap, num_tokens, generator=generator) * 3
    lse = lse.t() if gap else lse.t().contiguous()
    return State(out.to(TORCH[spec.dtype_out])[:, :heads, :dim], lse[:, :heads])


def merged(ops: Ops, a: State, b: State, into: State | None = None) -> tuple[State, Fault]:
    """The op's result, by default in new memory full of NaN."""
    if into is None:
        into = State(torch.full_like(a.out, math.nan), torch.full_like(a.lse, math.nan))
    return into, ops.merge_states(into.out, into.lse, a.out, a.lse, b.out, b.lse)


def check_merged(got: State, want: tuple[Tensor, Tensor], *, num_merges: int = 1) -> None:
    """Compare with the oracle's (out, lse); each merge rounds once."""
    tolerance = TOLERANCE[str(got.out.dtype).removeprefix("torch.")] * num_merges
    assert relative_error(got.out, want[0]) <= tolerance
    empty = want[1] == -math.inf
    assert bool((got.lse[empty] == -math.inf).all())
    gap = (got.lse.double() - want[1])[~empty].abs()
    assert not gap.numel() or float(gap.max()) <= min(LSE_TOLERANCE, 1e-5)


def check_merge(ops: Ops, a: State, b: State) -> State:
    """One merge against the oracle."""
    got, fault = merged(ops, a, b)
    assert not fault
    check_merged(got, oracle.merge_states(a.out, a.lse, b.out, b.lse))
    return got
