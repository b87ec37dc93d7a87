"""What the copy engine forbids, one kernel a rule: each must be reported."""

from __future__ import annotations

import pytest

from tests.probes.probe import Box
from tests.simulate.loading import BEGIN, INIT, LOAD, loading
from tests.simulate.rules import SEEDS, Rule, ids

RULES: tuple[Rule, ...] = (
    loading(
        "load_without_fence_of_the_mbarrier",
        r"tma_load_4d: thread 0 has initialised this mbarrier and not fenced it since",
        BEGIN
        + f"""
  if (threadIdx.x == 0) {{
    mbarrier_init(barrier, 1);
    mbarrier_arrive_expect_tx(barrier, 512);
    {LOAD}  // here
  }}
""",
    ),
    loading(
        "load_with_too_many_bytes_expected",
        r"mbarrier_wait: deadlock: 32 threads never leave \(its phase lacks 0 arrivals and 16 b",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    mbarrier_arrive_expect_tx(barrier, 528);
    {LOAD}
  }}
  mbarrier_wait(barrier, 0);  // here
""",
    ),
    loading(
        "load_with_too_few_bytes_expected",
        r"tma_load_4d: wrong expect_tx: the phase still expects 496 bytes, and 512 are on their",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    mbarrier_arrive_expect_tx(barrier, 496);
    {LOAD}  // here
  }}
  mbarrier_wait(barrier, 0);
""",
    ),
    loading(
        "load_from_half_a_unit",
        r"tma_load_4d: the innermost coordinate, 3 elements of \d bytes, is not a multiple of 16",
        INIT
        + """
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 512);
    tma_load_4d(base, p.map, barrier, 3, 0, 0, 0);  // here
  }
  mbarrier_wait(barrier, 0);
""",
    ),
    loading(
        "load_before_the_bytes_are_expected",
        r"mbarrier_arrive: wrong expect_tx: the phase still expects -?\d+ bytes, and \d+ are on",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    {LOAD}
    mbarrier_arrive(barrier);  // here
  }}
  mbarrier_wait(barrier, 0);
""",
    ),
    loading(
        "load_read_without_a_wait",
        r"race: this read of shared byte|its copy has not been waited for",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    mbarrier_arrive_expect_tx(barrier, 512);
    {LOAD}
  }}
  __syncwarp();
  p.out[threadIdx.x] = words[threadIdx.x];  // here
""",
    ),
    loading(
        "load_that_one_warp_waits_for",
        r"race: this read of shared byte|its copy has not been waited for|is read before a write",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    mbarrier_arrive_expect_tx(barrier, 512);
    {LOAD}
  }}
  if (threadIdx.x < 32) mbarrier_wait(barrier, 0);
  p.out[threadIdx.x] = words[threadIdx.x % 32];  // here
""",
        threads=64,
    ),
    loading(
        "load_over_what_is_being_read",
        r"race: this write of shared byte|its copy has not been waited for",
        INIT
        + f"""
  for (int i = 0; i < 4; ++i) {{
    if (threadIdx.x == 0) {{
      mbarrier_arrive_expect_tx(barrier, 512);
      {LOAD}  // here
    }}
    mbarrier_wait(barrier, i % 2);
    p.out[threadIdx.x] = words[threadIdx.x];  // here
  }}
""",
        threads=64,
    ),
    loading(
        "load_over_unfenced_writes",
        r"tma_load_4d: shared byte \w+: written by thread 0, which has not fenced it since",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    words[0] = 5;
    mbarrier_arrive_expect_tx(barrier, 512);
    {LOAD}  // here
  }}
  mbarrier_wait(barrier, 0);
""",
    ),
    loading(
        "load_in_flight_at_the_end",
        r"tma_load_4d: the block ends while this is in flight",
        INIT
        + """
  for (int i = 0; i < 8; ++i) {
    if (threadIdx.x == 0) {
      mbarrier_expect_tx(barrier, 1024);
      tma_load_4d(base + 2048 + 512 * i, p.map, barrier, 0, 0, 0, 0);  // here
    }
  }
""",
        shared_bytes=2048 + 4096,
    ),
    loading(
        "load_to_a_misaligned_place",
        r"tma_load_4d: shared address 0x40 is not a multiple of 128",
        INIT
        + """
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 512);
    tma_load_4d(base + 64, p.map, barrier, 0, 0, 0, 0);  // here
  }
""",
    ),
    loading(
        "load_past_shared_memory",
        r"tma_load_4d: 512 bytes at shared address 0x400, but a block has 1040 bytes",
        INIT
        + """
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 512);
    tma_load_4d(base + 1024, p.map, barrier, 0, 0, 0, 0);  // here
  }
""",
    ),
    loading(
        "load_by_the_wrong_rank",
        r"tma_load_5d: a tensor map of rank 4, and 5 coordinates",
        INIT + "  if (threadIdx.x == 0) tma_load_5d(base, p.map, barrier, 0, 0, 0, 0, 0);  // here",
    ),
    loading(
        "load_by_what_is_no_map",
        r"tma_load_4d: no tensor map is here",
        INIT
        + """
  TensorMap map = {};
  if (threadIdx.x == 0) tma_load_4d(base, map, barrier, 0, 0, 0, 0);  // here
""",
    ),
    loading(
        "load_past_the_tensor_by_a_map_that_lies",
        r"tma_load_4d: read of 128 bytes outside every tensor, 128 bytes past the end of",
        INIT
        + """
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 512);
    tma_load_4d(base, p.map, barrier, 0, 31, 0, 0);  // here
  }
""",
        maps={"map": Box("x", (32, 33, 1, 1), (128, 4096, 4096), (32, 4, 1, 1), 0)},
    ),
    loading(
        "run_that_is_no_multiple_of_16",
        r"bulk_load: 24 bytes from an address that is 0 past a multiple of 16",
        INIT
        + """
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 24);
    bulk_load(base, p.x, 24, barrier);  // here
  }
""",
    ),
    loading(
        "store_of_unfenced_writes",
        r"tma_store_4d: shared byte \w+: written by thread \d+, which has not fenced it since",
        BEGIN
        + """
  for (int i = threadIdx.x; i < 128; i += 32) words[i] = i;
  __syncwarp();
  if (threadIdx.x == 0) {
    fence_proxy_async();
    tma_store_4d(p.to, base, 0, 0, 0, 0);  // here
    tma_commit_stores();
    tma_wait_stores<0>();
  }
""",
        maps={"to": Box("out", (32, 8, 4, 1), (128, 1024, 4096), (32, 4, 1, 1), 128)},
    ),
    loading(
        "store_overwritten_before_it_is_read",
        r"shared byte \w+: something may still be reading it",
        BEGIN
        + """
  for (int i = threadIdx.x; i < 128; i += 32) words[i] = i;
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    tma_store_4d(p.to, base, 0, 0, 0, 0);
    tma_commit_stores();
    words[3] = 4;  // here
    tma_wait_stores<0>();
  }
""",
        maps={"to": Box("out", (32, 8, 4, 1), (128, 1024, 4096), (32, 4, 1, 1), 128)},
    ),
    loading(
        "store_without_a_wait",
        r"tma_store_4d: the thread ends before this store has read shared memory",
        BEGIN
        + """
  for (int i = threadIdx.x; i < 128; i += 32) words[i] = i;
  fence_proxy_async();
  __syncwarp();
  if (threadIdx.x == 0) {
    tma_store_4d(p.to, base, 0, 0, 0, 0);  // here
    tma_commit_stores();
  }
""",
        maps={"to": Box("out", (32, 8, 4, 1), (128, 1024, 4096), (32, 4, 1, 1), 128)},
    ),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_a_broken_rule_of_copies_is_reported(rule: Rule, seed: int) -> None:
    rule.check(seed)
