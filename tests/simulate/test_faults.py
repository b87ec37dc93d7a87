"""What any GPU forbids, one kernel a rule: each must be reported, with every seed."""

from __future__ import annotations

import pytest

from tests.simulate.rules import SEEDS, Rule, ids

SHARED = """
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared);
"""
COPY = ("copy",)

RULES: tuple[Rule, ...] = (
    Rule(
        "missing_syncthreads",
        r"race: this (read|write) of shared byte .* is not ordered after a (write|read) by thread"
        r"|is read before a write",
        SHARED
        + """
  words[threadIdx.x] = threadIdx.x;  // here
  p.out[threadIdx.x] = words[63 - threadIdx.x];  // here
""",
        threads=64,
    ),
    Rule(
        "missing_syncwarp",
        r"race: this (read|write) of shared byte|is read before a write",
        SHARED
        + """
  words[threadIdx.x] = threadIdx.x;  // here
  p.out[threadIdx.x] = words[31 - threadIdx.x];  // here
""",
    ),
    Rule(
        "missing_barrier_before_reuse",
        r"race: this (read|write) of shared byte|is read before a write",
        SHARED
        + """
  for (int i = 0; i < 4; ++i) {
    words[threadIdx.x] = threadIdx.x + i;  // here
    __syncthreads();
    p.out[64 * i + threadIdx.x] = words[63 - threadIdx.x];  // here
  }
""",
        threads=64,
    ),
    Rule(
        "divergent_shuffle",
        r"__shfl_sync: lane \d+ is here, while others of its warp are at __shfl_sync",
        """
  unsigned x = threadIdx.x;
  if (threadIdx.x < 16) {
    x = __shfl_sync(0xffffffff, x, 3);  // here
  } else {
    x = __shfl_sync(0xffffffff, x, 4);  // here
  }
  p.out[threadIdx.x] = x;
""",
    ),
    Rule(
        "different_masks",
        r"lane \d+ is here, while others of its warp are at __ballot_sync",
        """
  const unsigned mask = threadIdx.x < 16 ? 0xffffffff : 0xffff0000;
  p.out[threadIdx.x] = __ballot_sync(mask, 1);  // here
""",
    ),
    Rule(
        "lane_outside_its_mask",
        r"__ballot_sync: lane \d+ is not in its own mask 0xffff",
        "  p.out[threadIdx.x] = __ballot_sync(0xffff, 1);  // here",
    ),
    Rule(
        "shuffle_from_outside_the_mask",
        r"__shfl_sync: lane 20 is not in the mask",
        "  if (threadIdx.x < 16) p.out[threadIdx.x] = __shfl_sync(0xffff, 1u, 20);  // here",
    ),
    Rule(
        "returned_lane",
        r"__shfl_sync: lane \d+ of the (mask|warp) has returned",
        """
  if (threadIdx.x == 7) return;
  p.out[threadIdx.x] = __shfl_sync(0xffffffff, 1u, 0);  // here
""",
    ),
    Rule(
        "returned_thread",
        r"__syncthreads: (\d+ threads of the block have|thread \d+ has) returned",
        """
  if (threadIdx.x >= 32) return;
  __syncthreads();  // here
""",
        threads=64,
    ),
    Rule(
        "barriers_of_two_lines",
        r"__syncthreads: a barrier of all threads, while others are at that of line",
        """
  if (threadIdx.x < 32) {
    __syncthreads();  // here
  } else {
    __syncthreads();  // here
  }
""",
        threads=64,
    ),
    Rule(
        "deadlock",
        r"deadlock: 64 threads never leave; \d+ wait elsewhere, thread \d+ at __sync",
        """
  if (threadIdx.x == 5) {
    __syncwarp();  // here
  } else {
    __syncthreads();  // here
  }
""",
        threads=64,
    ),
    Rule(
        "read_before_the_wait",
        r"shared byte .*: its copy has not been waited for",
        SHARED
        + """
  copy_async_4(shared_address(words + threadIdx.x), p.x + threadIdx.x, true);
  commit_copies();
  p.out[threadIdx.x] = words[threadIdx.x];  // here
  wait_copies<0>();
""",
        COPY,
    ),
    Rule(
        "wait_for_too_few_groups",
        r"shared byte .*: its copy has not been waited for",
        SHARED
        + """
  for (int i = 0; i < 2; ++i) {
    copy_async_4(shared_address(words + 32 * i + threadIdx.x), p.x + threadIdx.x, true);
    commit_copies();
  }
  wait_copies<1>();
  p.out[threadIdx.x] = words[32 + threadIdx.x];  // here
  wait_copies<0>();
""",
        COPY,
    ),
    Rule(
        "copy_over_a_copy",
        r"copy_async_4: shared byte .*: its copy has not been waited for",
        SHARED
        + """
  copy_async_4(shared_address(words + threadIdx.x), p.x + threadIdx.x, true);
  copy_async_4(shared_address(words + threadIdx.x), p.x + 32 + threadIdx.x, true);  // here
  wait_all_copies();
""",
        COPY,
    ),
    Rule(
        "copy_without_a_wait",
        r"copy_async_16: the thread ends before this copy is waited for",
        SHARED + "  copy_async_16(shared_address(words + 4 * threadIdx.x), p.x, true);  // here",
        COPY,
    ),
    Rule(
        "copies_of_others_without_a_barrier",
        r"race: this read of shared byte|its copy has not been waited for|is read before a write",
        SHARED
        + """
  copy_async_4(shared_address(words + threadIdx.x), p.x + threadIdx.x, true);  // here
  wait_all_copies();
  p.out[threadIdx.x] = words[63 - threadIdx.x];  // here
""",
        COPY,
        threads=64,
    ),
    Rule(
        "misaligned_copy",
        r"copy_async_16: shared address 0x8 is not a multiple of 16",
        SHARED
        + """
  if (threadIdx.x == 0) copy_async_16(shared_address(words + 2), p.x, true);  // here
  wait_all_copies();
""",
        COPY,
    ),
    Rule(
        "misaligned_primitive",
        r"store_16: address of 16 bytes is not a multiple of their number",
        "  store_16(p.out + 4 * threadIdx.x + 1, load_16(p.x));  // here",
        ("vector",),
    ),
    Rule(
        "misaligned_vector",
        r"load at an address that is not a multiple of 16|address of 16 bytes is not a multiple",
        "  p.out[threadIdx.x] = reinterpret_cast<const uint4*>(p.x + 1)[threadIdx.x].y;  // here",
    ),
    Rule(
        "read_past_a_tensor",
        r"read of 4 bytes outside every tensor, 4 bytes past the end of x",
        "  p.out[threadIdx.x] = p.x[1024 - 31 + threadIdx.x];  // here",
    ),
    Rule(
        "write_before_a_tensor",
        r"write of 4 bytes outside every tensor, \d+ bytes (before|past the end of) \w+",
        "  p.out[static_cast<int>(threadIdx.x) - 1] = 1;  // here",
    ),
    Rule(
        "write_to_what_is_read_only",
        r"write of 4 bytes of a tensor that is only read",
        "  const_cast<unsigned*>(p.x)[threadIdx.x] = 1;  // here",
    ),
    Rule(
        "shared_memory_past_its_end",
        r"4 bytes at shared address 0x400, but a block has 1024 bytes",
        SHARED + "  words[225 + threadIdx.x] = 1;  // here",
    ),
    Rule(
        "shared_memory_never_written",
        r"shared byte \w+ is read before a write",
        SHARED + "  p.out[threadIdx.x] = words[threadIdx.x];  // here",
    ),
    Rule(
        "race_between_blocks",
        r"race: this (read|write) of global byte .* is not ordered after a (write|read) by thread",
        """
  if (blockIdx.x == 0) {
    p.out[threadIdx.x] = 1;  // here
  } else {
    p.out[64 + threadIdx.x] = p.out[threadIdx.x];  // here
  }
""",
        grid=2,
    ),
    Rule(
        "count_that_orders_nothing",
        r"race: this read of global byte .* is not ordered after a write",
        """
  p.out[8 + 32 * blockIdx.x + threadIdx.x] = 1;
  __syncwarp();
  unsigned before = 0;
  if (threadIdx.x == 0) before = atomicAdd(reinterpret_cast<int*>(p.out), 1);
  if (__shfl_sync(0xffffffff, before, 0) != 3) return;
  unsigned sum = 0;
  for (int i = 0; i < 4; ++i) sum += p.out[8 + 32 * i + threadIdx.x];  // here
  p.out[512 + threadIdx.x] = sum;
""",
        grid=4,
    ),
    Rule(
        "plain_and_atomic",
        r"race: this (atomic operation|read|write) of global byte",
        """
  if (threadIdx.x == 0) {
    p.out[0] = 5;  // here
  } else {
    atomicAdd(reinterpret_cast<int*>(p.out), 1);  // here
  }
""",
    ),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_a_broken_rule_is_reported(rule: Rule, seed: int) -> None:
    rule.check(seed)
