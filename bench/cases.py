"""The rows that are timed: sizes and names only.

It knows no tensor and no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bench.errors import UsageError

K = 1024


@dataclass(frozen=True)
class Case:
    """A batch over a paged cache. Lengths in tokens; every sequence looks alike."""

    op: str  # decode, prefill or write_kv
    name: str
    num_seqs: int
    q_len: int  # new tokens of a sequence
    seq_len: int  # all its tokens, the new ones included
    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    dtype: str = "bf16"

    @property
    def num_tokens(self) -> int:
        """New tokens of the batch."""
        return self.num_seqs * self.q_len

    @property
    def blocks_per_seq(self) -> int:
        """KV blocks that hold a sequence."""
        return -(-self.seq_len // self.block_size)

    @property
    def num_blocks(self) -> int:
        """KV blocks of the batch."""
        return self.num_seqs * self.blocks_per_seq

    def label(self) -> str:
        """The row in words, as reports print it."""
        new = "" if self.op == "decode" else f" new={self.q_len}"
        heads = f"h{self.num_q_heads}x{self.num_kv_heads}"
        sizes = f"{heads} d{self.head_dim} b{self.block_size} {self.dtype}"
        return f"{self.op} seqs={self.num_seqs}{new} len={self.seq_len} {sizes}"


def _decode(name: str, num_seqs: int, seq_len: int, num_q_heads: int, num_kv_heads: int) -> Case:
    return Case("decode", name, num_seqs, 1, seq_len, num_q_heads, num_kv_heads)


DECODE = (
    _decode("1x1k", 1, K, 32, 8),
    _decode("1x8k", 1, 8 * K, 32, 8),
    _decode("1x128k", 1, 128 * K, 32, 8),
    _decode("8x8k", 8, 8 * K, 32, 8),
    _decode("64x1k", 64, K, 32, 8),
    _decode("64x8k", 64, 8 * K, 32, 8),
    _decode("256x2k", 256, 2 * K, 32, 8),
    _decode("16x64k", 16, 64 * K, 32, 8),
    _decode("64x8k-h64x8", 64, 8 * K, 64, 8),
    _decode("16x8k-h32x32", 16, 8 * K, 32, 32),
)

PREFILL = (
    Case("prefill", "16x1k", 16, K, K),
    Case("prefill", "4x4k", 4, 4 * K, 4 * K),
    Case("prefill", "1x16k", 1, 16 * K, 16 * K),
    Case("prefill", "1x32k", 1, 32 * K, 32 * K),
    Case("prefill", "2k+30k", 1, 2 * K, 32 * K),
    Case("prefill", "4x512+7.5k", 4, K // 2, 8 * K),
    Case("prefill", "1x16k-b128", 1, 16 * K, 16 * K, block_size=128),
)

WRITE_KV = (
    Case("write_kv", "8k", 1, 8 * K, 8 * K),
    Case("write_kv", "64", 64, 1, 8 * K),
)

SMALL_BLOCK, LARGE_BLOCK = 16, 128
PAGED_ROWS = ("1x8k", "64x8k", "256x2k", "16x1k", "4x4k", "1x16k", "2k+30k", "4x512+7.5k")


def with_block_size(case: Case, block_size: int) -> Case:
    """The same row over blocks of another size."""
    return replace(case, block_size=block_size)


def block_size_pairs() -> tuple[tuple[Case, Case], ...]:
    """Rows twice, with small and with large blocks: paging should cost nothing."""
    rows = [case for case in (*DECODE, *PREFILL) if case.name in PAGED_ROWS]
    return tuple(
        (with_block_size(case, SMALL_BLOCK), with_block_size(case, LARGE_BLOCK)) for case in rows
    )


def select(cases: Sequence[Case], patterns: Sequence[str]) -> tuple[Case, ...]:
    """The cases whose names match a shell pattern; all without patterns.

    Raises UsageError, naming the rows there are, when a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            known = ", ".join(case.name for case in cases)
            raise UsageError(f"no row matches {pattern!r}; there are: {known}")
    return tuple(
        case for case in cases if not patterns or any(fnmatchcase(case.name, p) for p in patterns)
    )
