"""What wgmma, setmaxnreg and named barriers forbid, one kernel a rule: each must be reported."""

from __future__ import annotations

import pytest

from pagegen.dtypes import dtype
from pagegen.wgmma import Wgmma
from tests.simulate.rules import SEEDS, Rule, ids

PARTIALS = (
    "types", "copy", "proxy", "mbarrier", "warpgroup", "matrix_store", "fp8", "wgmma",
    "wgmma_descriptor",
)  # fmt: skip

# Zeros as both operands, K-major in rows of 128 bytes, and as the sum.
BEGIN = """
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared);
  const unsigned base = shared_address(shared);
  const unsigned long long tile = matrix_descriptor(base, 0, 1024, SWIZZLE_128);
  float d[4] = {};
"""
FILL = """
  for (int i = threadIdx.x; i < 2048; i += blockDim.x) words[i] = 0;
"""
ZEROS = (
    BEGIN
    + FILL
    + """
  fence_proxy_async();
  __syncthreads();
"""
)
MULTIPLY = """
  wgmma_fence();
  wgmma_ss<bf16_t>(d, tile, tile, false);
  wgmma_commit();
"""
END = """
  wgmma_wait<0>();
  p.out[threadIdx.x] = static_cast<unsigned>(d[0] + d[1] + d[2] + d[3]);
"""
HERE = MULTIPLY.replace("false);", "false);  // here")


def multiplying(name: str, said: str, body: str, *, threads: int = 128) -> Rule:
    """A rule for a kernel that may multiply."""
    shapes = (Wgmma(dtype("bf16"), 8), Wgmma(dtype("bf16"), 16))
    return Rule(name, said, body, PARTIALS, threads, shared_bytes=8208, wgmmas=shapes)


RULES: tuple[Rule, ...] = (
    multiplying(
        "product_without_a_fence",
        r"wgmma_ss: no wgmma_fence since the start or the last wgmma_wait",
        ZEROS + "  wgmma_ss<bf16_t>(d, tile, tile, false);  // here\n  wgmma_commit();" + END,
    ),
    multiplying(
        "product_after_a_wait_without_a_fence",
        r"wgmma_ss: no wgmma_fence since the start or the last wgmma_wait",
        ZEROS
        + MULTIPLY
        + END
        + "  wgmma_ss<bf16_t>(d, tile, tile, false);  // here\n  wgmma_commit();"
        + END,
    ),
    multiplying(
        "product_without_a_wait",
        r"wgmma_ss: the thread ends before this product is waited for",
        ZEROS + HERE,
    ),
    multiplying(
        "product_without_a_commit",
        r"wgmma_ss: the thread ends before this product is waited for",
        ZEROS + HERE.replace("wgmma_commit();", "") + END,
    ),
    multiplying(
        "product_of_unfenced_writes",
        r"wgmma_ss: shared byte \w+: written by thread \d+, which has not fenced it since",
        BEGIN + FILL + "  __syncthreads();" + HERE + END,
    ),
    multiplying(
        "product_fenced_by_others",
        r"wgmma_ss: shared byte \w+: written by thread \d+, which has not fenced it since",
        BEGIN
        + FILL
        + """
  __syncthreads();
  if (threadIdx.x < 64) fence_proxy_async();
  __syncthreads();
"""
        + HERE
        + END,
    ),
    multiplying(
        "product_of_writes_without_a_barrier",
        r"wgmma_ss: race: this read of shared byte \w+ is not ordered after a write by thread",
        BEGIN + FILL + "  fence_proxy_async();" + HERE + END,
    ),
    multiplying(
        "operand_overwritten_in_flight",
        r"shared byte \w+: something may still be reading it",
        ZEROS + MULTIPLY + "  if (threadIdx.x == 9) words[1] = 1;  // here" + END,
    ),
    multiplying(
        "operand_given_back_before_the_wait",
        r"race: this write of shared byte .* after a read by wgmma of warpgroup 0|still be reading",
        BEGIN
        + FILL
        + """
  const unsigned barrier = base + 8192;
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x >= 128) {
    mbarrier_wait(barrier, 0);
    if (threadIdx.x == 130) words[1] = 1;  // here
  } else {
    wgmma_fence();
    wgmma_ss<bf16_t>(d, tile, tile, false);
    wgmma_commit();
    if (threadIdx.x == 0) mbarrier_arrive(barrier);
    wgmma_wait<0>();
  }
""",
        threads=160,
    ),
    multiplying(
        "result_written_in_flight",
        r"wgmma_wait: register 1 of a result was written before the wait",
        ZEROS
        + MULTIPLY
        + """
  d[1] = 3.0f;
  wgmma_wait<0>();  // here
""",
    ),
    multiplying(
        "result_of_another_shape_in_flight",
        r"wgmma_ss: these registers are the result of a product of another shape in flight",
        ZEROS.replace(
            "float d[4] = {};",
            "float wide[8] = {};\n  auto& d = *reinterpret_cast<float(*)[4]>(&wide);",
        )
        + """
  wgmma_fence();
  wgmma_ss<bf16_t>(wide, tile, tile, false);
  wgmma_ss<bf16_t>(d, tile, tile, false);  // here
  wgmma_commit();
"""
        + END,
    ),
    multiplying(
        "operand_past_shared_memory",
        r"wgmma_ss: 16 bytes at shared address 0x2010, but a block has 8208 bytes",
        ZEROS
        + MULTIPLY.replace(
            "tile, tile, false);",
            "matrix_descriptor(base + 8208, 0, 1024, SWIZZLE_128), tile, false);  // here",
        )
        + END,
    ),
    multiplying(
        "descriptor_with_bits_that_mean_nothing",
        r"wgmma_ss: B: descriptor 0x\w+ has bits that mean nothing",
        ZEROS
        + MULTIPLY.replace("tile, tile, false);", "tile, tile | 1 << 14, false);  // here")
        + END,
    ),
    multiplying(
        "descriptors_that_differ",
        r"wgmma_ss: threads \d+ and \d+ give different operands",
        ZEROS
        + MULTIPLY.replace(
            "tile, tile, false);", "tile, tile + (threadIdx.x == 77), false);  // here"
        )
        + END,
    ),
    multiplying(
        "product_by_part_of_a_warpgroup",
        r"wgmma_ss: thread \d+ (of the warpgroup )?has returned",
        ZEROS + "  if (threadIdx.x >= 96) return;" + HERE + END,
    ),
    multiplying(
        "product_by_three_warps",
        r"wgmma_fence: thread \d+ is in no whole warpgroup: the block has 96 threads",
        ZEROS + "  wgmma_fence();  // here",
        threads=96,
    ),
    multiplying(
        "products_of_two_lines",
        r"wgmma_ss: thread \d+ is here, while others of its warpgroup are at wgmma_ss, line",
        ZEROS
        + """
  wgmma_fence();
  if (threadIdx.x < 64) {
    wgmma_ss<bf16_t>(d, tile, tile, false);  // here
  } else {
    wgmma_ss<bf16_t>(d, tile, tile, false);  // here
  }
"""
        + END,
    ),
    multiplying(
        "registers_that_are_no_multiple_of_8",
        r"setmaxnreg_dec: 28 registers; a multiple of 8 from 24 to 256",
        "  setmaxnreg_dec<28>();  // here",
    ),
    multiplying(
        "registers_of_part_of_a_warpgroup",
        r"setmaxnreg_\w+: thread \d+ is here, while others of its warpgroup are at setmaxnreg_",
        """
  if (threadIdx.x < 32) {
    setmaxnreg_dec<24>();  // here
  } else {
    setmaxnreg_inc<240>();  // here
  }
""",
    ),
    multiplying(
        "barrier_16",
        r"named_barrier_sync: barrier 16; a block has 0 to 15",
        "  named_barrier_sync(16, 128);  // here",
    ),
    multiplying(
        "barrier_of_half_a_warp",
        r"named_barrier_sync: a barrier of 48 threads; whole warps are allowed",
        "  named_barrier_sync(1, 48);  // here",
    ),
    multiplying(
        "barrier_of_two_counts",
        r"named_barrier_sync: a barrier of (64|128) threads, and of (64|128) in line",
        "  named_barrier_sync(1, threadIdx.x < 32 ? 64 : 128);  // here",
    ),
    multiplying(
        "barrier_that_a_warp_comes_to_twice",
        r"named_barrier_arrive: thread \d+ arrives twice before 128 threads have arrived",
        """
  if (threadIdx.x < 32) {
    named_barrier_arrive(1, 128);
    named_barrier_arrive(1, 128);  // here
  }
""",
    ),
    multiplying(
        "barrier_without_all",
        r"named_barrier_sync: deadlock: 64 threads never leave",
        "  if (threadIdx.x < 64) named_barrier_sync(1, 96);  // here",
    ),
    multiplying(
        "barrier_that_only_some_wait_for",
        r"race: this (read|write) of shared byte|is read before a write",
        """
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared);
  if (threadIdx.x < 64) {
    words[threadIdx.x] = 1;  // here
    named_barrier_sync(1, 128);
  } else {
    named_barrier_arrive(1, 128);
    p.out[threadIdx.x] = words[threadIdx.x - 64];  // here
  }
""",
    ),
    multiplying(
        "stored_matrices_without_a_barrier",
        r"race: this read of shared byte|is read before a write",
        """
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned matrices[4] = {1, 2, 3, 4};
  store_matrix_x4(shared_address(shared) + 16 * threadIdx.x, matrices);
  p.out[threadIdx.x] = reinterpret_cast<unsigned*>(shared)[127 - threadIdx.x];  // here
""",
    ),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_a_broken_rule_is_reported(rule: Rule, seed: int) -> None:
    rule.check(seed)
