"""What a case must move and compute, and how fast this machine can: the floor under every time.

Bytes and FLOPs come from the case alone; only the two roofs are measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bench.cases import Case

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
INDEX_BYTES = 4
SLOT_BYTES = 8
ROOF_BYTES = 4 * 1024**3
MATMUL_SIZE = 8192


@dataclass(frozen=True)
class Work:
    """The least a case costs: each input read once, each output written once."""

    num_bytes: int
    flops: int

    def gb_per_s(self, time_us: float) -> float:
        """10**9 bytes a second at this time."""
        return self.num_bytes / time_us / 1e3

    def tflop_per_s(self, time_us: float) -> float:
        """10**12 operations a second at this time."""
        return self.flops / time_us / 1e6


@dataclass(frozen=True)
class Roofs:
    """A machine's measured limits."""

    gb_per_s: float
    tflop_per_s: float

    def floor_us(self, work: Work) -> float:
        """The least time the work can take."""
        return max(work.num_bytes / self.gb_per_s / 1e3, work.flops / self.tflop_per_s / 1e6)

    def fraction(self, work: Work, time_us: float) -> float:
        """Share of the roof that limits this work, reached at this time."""
        return self.floor_us(work) / time_us


def visible_pairs(case: Case) -> int:
    """Query-key pairs that causal attention, aligned to the end, looks at, in the whole batch."""
    prefix = case.seq_len - case.q_len
    return case.num_seqs * (case.q_len * prefix + case.q_len * (case.q_len + 1) // 2)


def work_of(case: Case) -> Work:
    """Bytes and FLOPs of a case. A multiply-add counts as two."""
    element = ELEMENT_BYTES[case.dtype]
    kv_row = 2 * case.num_kv_heads * case.head_dim * element
    if case.op == "write_kv":
        return Work(case.num_tokens * (2 * kv_row + SLOT_BYTES), 0)
    cache = case.num_seqs * case.seq_len * kv_row
    rows = 2 * case.num_tokens * case.num_q_heads * case.head_dim * element  # q and out
    metadata = (case.num_blocks + case.num_seqs) * INDEX_BYTES
    flops = 4 * case.head_dim * visible_pairs(case) * case.num_q_heads
    return Work(cache + rows + metadata, flops)


def measure_roofs(repeats: int = 15) -> Roofs:
    """This device's bandwidth (the better of reading and of copying) and bf16 matrix rate.

    Copies count bytes read and bytes written. Random data: some units run faster on zeros.
    """
    import torch

    roofs = Roofs(_bandwidth(repeats), _matrix_rate(repeats))
    torch.cuda.empty_cache()
    return roofs


def _bandwidth(repeats: int) -> float:
    import torch

    from pagegen.runtime.timer import measure

    source = torch.randn(ROOF_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    total = torch.zeros((), device="cuda")
    read = measure(partial(torch.sum, source, dim=0, out=total), repeats=repeats)
    copy = measure(partial(target.copy_, source), repeats=repeats)
    return max(ROOF_BYTES / read.median_us, 2 * ROOF_BYTES / copy.median_us) / 1e3


def _matrix_rate(repeats: int) -> float:
    import torch

    from pagegen.runtime.timer import measure

    shape = (MATMUL_SIZE, MATMUL_SIZE)
    left, right = (torch.randn(shape, device="cuda").to(torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    matmul = measure(partial(torch.mm, left, right, out=product), repeats=repeats)
    return 2 * MATMUL_SIZE**3 / matmul.median_us / 1e6
