"""Adversarial inputs for a generated package: poisoned, shuffled, ragged, empty, extreme, strided.

It knows the meaning of the ops and no backend; whatever must not be read is NaN or an absurd id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagegen.oracle import Attention, Lookup

ABSURD_IDS = (-1, 2**31 - 1, 999_999)
TOLERANCE = {"bfloat16": 6e-3, "float16": 1.5e-3, "float32": 2e-5}  # ||out - ref|| / ||ref||
LSE_TOLERANCE = 2e-3  # absolute, plus one part in a million of the value


@dataclass(frozen=True)
class Shape:
    """What of a spec the cases need."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    block_size: int
    dtype: torch.dtype
    csr: bool
    attention: Attention


@dataclass(frozen=True)
class Case:
    """One call. Tensors are on the device under test; `seed` reproduces it."""

    name: str
    q: Tensor  # [num_tokens, num_q_heads, head_dim]
    k_cache: Tensor
    v_cache: Tensor
    lookup: Lookup
    seq_lens: Tensor
    cu_seqlens_q: Tensor
    sm_scale: float

    @property
    def max_seqlen_q(self) -> int:
        return (
            int((self.cu_seqlens_q[1:] - self.cu_seqlens_q[:-1]).max()) if len(self.seq_lens) else 0
        )


def paged(
    shape: Shape, tokens: Tensor, seq_lens: list[int], generator: torch.Generator
) -> tuple[Tensor, list[list[int]]]:
    """Scatter [num_seqs, max_len, heads, dim] into shuffled blocks; all else is NaN.

    Block 0 is never used, as several runtimes reserve it.
    """
    num_blocks_of = [math.ceil(n / shape.block_size) for n in seq_lens]
    num_blocks = sum(num_blocks_of) + 3
    heads, dim = tokens.shape[2], tokens.shape[3]
    cache = torch.full((num_blocks, shape.block_size, heads, dim), math.nan, dtype=tokens.dtype)
    order = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    rows: list[list[int]] = []
    for seq, (seq_len, count) in enumerate(zip(seq_lens, num_blocks_of, strict=True)):
        blocks, order = order[:count], order[count:]
        rows.append(blocks)
        for index, block in enumerate(blocks):
            first = index * shape.block_size
            size = min(shape.block_size, seq_len - first)
            cache[block, :size] = tokens[seq, first : first + size]
    return cache, rows


def lookup_of(shape: Shape, rows: list[list[int]]) -> Lookup:
    """The block table with absurd tails, or indptr/indices with an absurd tail."""
    if shape.csr:
        counts = torch.tensor([0, *(len(row) for row in rows)])
        flat = [block for row in rows for block in row] + list(ABSURD_IDS)
        return counts.cumsum(0).to(torch.int32), torch.tensor(flat, dtype=torch.int32)
    width = max((len(row) for row in rows), default=0) + 3
    filler = [ABSURD_IDS[i % 3] for i in range(width)]
    table = [row + filler[: width - len(row)] for row in rows]
    return torch.tensor(table, dtype=torch.int32).reshape(len(rows), width)


def make_case(
    shape: Shape,
    name: str,
    seq_lens: list[int],
    q_lens: list[int],
    *,
    seed: int,
    magnitude: float = 1.0,
) -> Case:
    """Random normal q, k and v of the given lengths, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    longest = max([*seq_lens, 1])

    def normal(*size: int) -> Tensor:
        return (torch.randn(*size, generator=generator) * magnitude).to(shape.dtype)

    keys = normal(len(seq_lens), longest, shape.num_kv_heads, shape.head_dim)
    values = normal(len(seq_lens), longest, shape.num_kv_heads, shape.head_dim_v)
    state = generator.get_state()
    k_cache, rows = paged(shape, keys, seq_lens, generator)
    generator.set_state(state)  # the same blocks for V
    v_cache, _ = paged(shape, values, seq_lens, generator)
    if shape.attention.layout == "HND":
        k_cache = k_cache.transpose(1, 2).contiguous()
        v_cache = v_cache.transpose(1, 2).contiguous()
    return Case(
        name=name,
        q=normal(sum(q_lens), shape.num_q_heads, shape.head_dim),
        k_cache=k_cache,
        v_cache=v_cache,
        lookup=lookup_of(shape, rows),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *q_lens]).cumsum(0).to(torch.int32),
        sm_scale=shape.head_dim**-0.5,
    )


def strided(case: Case, layout: str) -> Case:
    """The same call on views: q a slice of a fused qkv row, K and V halves of one packed pool."""
    fused = torch.full((case.q.shape[0], case.q.shape[1] + 4, case.q.shape[2]), math.nan)
    fused = fused.to(case.q)
    fused[:, : case.q.shape[1]] = case.q
    dim = case.k_cache.shape[-1]
    pool = torch.cat([case.k_cache, case.v_cache], dim=-1)
    return replace(
        case,
        name=f"{case.name}, packed K|V {layout}",
        q=fused[:, : case.q.shape[1]],
        k_cache=pool[..., :dim],
        v_cache=pool[..., dim:],
    )


def extreme(case: Case) -> Case:
    """Scores near -65536 (a finite "minus infinity" would hide them) by q = -32 against k = 32."""
    k_cache = torch.where(case.k_cache.isnan(), case.k_cache, torch.full_like(case.k_cache, 32.0))
    scale = 64.0 / case.q.shape[-1]
    return replace(
        case,
        name="logits of -65536",
        q=torch.full_like(case.q, -32.0),
        k_cache=k_cache,
        sm_scale=scale,
    )


def edge_lengths(shape: Shape) -> list[int]:
    """Lengths about every boundary that matters: blocks, tiles, the window."""
    size, window = shape.block_size, shape.attention.window
    lengths = {1, 3, size - 1, size, size + 1, 15, 16, 17, 63, 64, 65, 129, 200}
    if window and window < 512:
        lengths |= {window - 1, window, window + 1, 2 * window + 5}
    return sorted(length for length in lengths if length > 0)


def decode_cases(shape: Shape, *, seed: int) -> tuple[Case, ...]:
    """Decode calls, one query token per sequence."""
    ragged = edge_lengths(shape)
    base = make_case(shape, "ragged", ragged, [1] * len(ragged), seed=seed)
    return (
        base,
        make_case(shape, "empty members", [0, 1, 17, 0], [1] * 4, seed=seed + 1),
        make_case(shape, "one long sequence", [777], [1], seed=seed + 2),
        strided(base, shape.attention.layout),
        extreme(make_case(shape, "extreme", [10, 5, 33], [1] * 3, seed=seed + 3)),
    )


def prefill_cases(shape: Shape, *, seed: int) -> tuple[Case, ...]:
    """Prefill calls: prompts, chunks over a prefix, empty members, more queries than keys."""
    size = shape.block_size
    base = make_case(
        shape, "chunks over prefixes", [7, size + 5, 70, 133, 2 * size], [7, 5, 1, 33, size],
        seed=seed,
    )  # fmt: skip
    return (
        base,
        make_case(shape, "prompt", [150], [150], seed=seed + 1),
        make_case(shape, "empty members", [9, 0, 5, 40], [0, 0, 5, 0], seed=seed + 2),
        make_case(shape, "more queries than keys", [2, 30], [5, 3], seed=seed + 3),
        strided(base, shape.attention.layout),
        extreme(make_case(shape, "extreme", [10, 33], [10, 4], seed=seed + 4)),
    )


def quick_cases(shape: Shape, kernel: str, *, seed: int) -> tuple[Case, ...]:
    """One small call with a partial block, an empty member and poison: for every build."""
    partial = min(shape.block_size, 32) + 1
    if kernel == "decode":
        return (make_case(shape, "small batch", [0, partial, 40], [1] * 3, seed=seed),)
    lens, q_lens = [partial + 4, 0, 12], [5, 0, 12]
    return (make_case(shape, "small batch", lens, q_lens, seed=seed),)


def to_device(case: Case, device: str) -> Case:
    """The case with its tensors on `device`, strides kept."""

    def move(tensor: Tensor) -> Tensor:
        if tensor.device.type == torch.device(device).type:
            return tensor
        base = tensor._base if tensor._base is not None else tensor
        moved = base.to(device)
        return moved.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    lookup = case.lookup
    return replace(
        case,
        q=move(case.q),
        k_cache=move(case.k_cache),
        v_cache=move(case.v_cache),
        lookup=(move(lookup[0]), move(lookup[1])) if isinstance(lookup, tuple) else move(lookup),
        seq_lens=move(case.seq_lens),
        cu_seqlens_q=move(case.cu_seqlens_q),
    )
