"""Tensors for a case: random normal data over shuffled blocks, and float64 results for some rows.

It knows no kernel, and works on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.cases import Case

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MAX_SAMPLES = 8


@dataclass(frozen=True)
class CaseTensors:
    """What decode and prefill read. Caches are NHD."""

    case: Case
    q: Tensor  # [num_tokens, num_q_heads, head_dim]
    k_cache: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    v_cache: Tensor  # as k_cache
    block_table: Tensor  # [num_seqs, blocks_per_seq] int32
    seq_lens: Tensor  # [num_seqs] int32
    cu_seqlens_q: Tensor  # [num_seqs + 1] int32

    @property
    def sm_scale(self) -> float:
        """What multiplies q k."""
        return float(self.case.head_dim**-0.5)

    def new_out(self) -> Tensor:
        """A result full of NaN, so that an element nobody wrote shows."""
        return torch.full_like(self.q, float("nan"))


def make_tensors(case: Case, device: torch.device | str, seed: int = 0) -> CaseTensors:
    """Fresh random tensors for a case; the same for equal seeds on one device."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = DTYPES[case.dtype]
    cache_shape = (case.num_blocks, case.block_size, case.num_kv_heads, case.head_dim)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

    blocks = torch.randperm(case.num_blocks, device=device, generator=generator)
    starts = torch.arange(case.num_seqs + 1, device=device, dtype=torch.int32)
    return CaseTensors(
        case=case,
        q=normal(case.num_tokens, case.num_q_heads, case.head_dim),
        k_cache=normal(*cache_shape),
        v_cache=normal(*cache_shape),
        block_table=blocks.to(torch.int32).view(case.num_seqs, case.blocks_per_seq),
        seq_lens=torch.full((case.num_seqs,), case.seq_len, dtype=torch.int32, device=device),
        cu_seqlens_q=starts * case.q_len,
    )


@dataclass(frozen=True)
class Reference:
    """Exact results of sampled rows."""

    rows: Tensor  # [num_samples] int64, of the result
    values: Tensor  # [num_samples, num_q_heads, head_dim] float64

    def error(self, out: Tensor) -> float:
        """||out - values|| / ||values|| over the sampled rows; inf if any element is not finite."""
        if not bool(torch.isfinite(out).all()):
            return float("inf")
        difference = out[self.rows].double() - self.values
        return float(difference.norm() / self.values.norm())


def make_reference(tensors: CaseTensors, num_samples: int = MAX_SAMPLES) -> Reference:
    """Attention in float64, causal and aligned to the end, for rows spread over the batch."""
    case = tensors.case
    rows = _spread(case.num_tokens, num_samples)
    values = [_attend(tensors, row // case.q_len, row % case.q_len) for row in rows]
    return Reference(torch.tensor(rows, device=tensors.q.device), torch.stack(values))


def _spread(count: int, num_samples: int) -> list[int]:
    """Up to num_samples of range(count), both ends among them, at uneven distances."""
    if count <= num_samples:
        return list(range(count))
    last = num_samples - 1
    # Rounding to odd steps keeps the samples from all falling on tile borders.
    return sorted({min(count - 1, (i * (count - 1) // last) | (i % 2)) for i in range(num_samples)})


def _attend(tensors: CaseTensors, seq: int, new_row: int) -> Tensor:
    """One query token over its visible keys: [num_q_heads, head_dim] float64."""
    case = tensors.case
    visible = case.seq_len - case.q_len + new_row + 1
    blocks = tensors.block_table[seq, : -(-visible // case.block_size)].long()
    query = tensors.q[seq * case.q_len + new_row].double()
    group = case.num_q_heads // case.num_kv_heads
    heads = []
    for head in range(case.num_kv_heads):  # one at a time: a long sequence in float64 is large
        keys = tensors.k_cache[blocks, :, head].flatten(0, 1)[:visible].double()
        values = tensors.v_cache[blocks, :, head].flatten(0, 1)[:visible].double()
        scores = query[head * group : (head + 1) * group] @ keys.T * tensors.sm_scale
        heads.append(scores.softmax(dim=-1) @ values)
    return torch.cat(heads)
