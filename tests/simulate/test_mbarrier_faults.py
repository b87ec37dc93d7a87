"""What mbarriers forbid, one kernel a rule: each must be reported."""

from __future__ import annotations

import pytest

from tests.simulate.loading import BEGIN, INIT, LOAD, loading
from tests.simulate.rules import SEEDS, Rule, ids

RULES: tuple[Rule, ...] = (
    loading(
        "mbarrier_without_init",
        r"mbarrier_wait: no mbarrier has been initialised at shared address 0x400",
        BEGIN + "  mbarrier_wait(barrier, 0);  // here",
    ),
    loading(
        "mbarrier_init_without_a_barrier",
        r"no mbarrier has been init|race: this atomic operation of shared byte 0x400 is not",
        BEGIN
        + """
  if (threadIdx.x == 0) mbarrier_init(barrier, 64);
  mbarrier_arrive(barrier);  // here
""",
        threads=64,
    ),
    loading(
        "mbarrier_init_twice",
        r"mbarrier_init: shared byte 0x400: an mbarrier is here",
        BEGIN
        + """
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  __syncwarp();
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);  // here
""",
    ),
    loading(
        "mbarrier_misplaced",
        r"mbarrier_init: shared address 0x404 is not a multiple of 8",
        BEGIN + "  if (threadIdx.x == 0) mbarrier_init(barrier + 4, 1);  // here",
    ),
    loading(
        "mbarrier_overwritten",
        r"shared byte 0x400: an mbarrier is here",
        INIT + "  if (threadIdx.x == 0) words[256] = 0;  // here",
    ),
    loading(
        "mbarrier_too_many_arrivals",
        r"mbarrier_arrive: more arrivals than the 1 that this mbarrier was initialised for",
        INIT
        + """
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, 512);
    mbarrier_arrive(barrier);  // here
  }
""",
    ),
    loading(
        "mbarrier_too_few_arrivals",
        r"mbarrier_wait: deadlock: 32 threads never leave \(its phase lacks 1 arrivals and 0",
        BEGIN
        + """
  if (threadIdx.x == 0) mbarrier_init(barrier, 33);
  __syncwarp();
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, 0);  // here
""",
    ),
    loading(
        "mbarrier_wrong_parity",
        r"mbarrier_wait: deadlock: 32 threads never leave \(its phase lacks 1 arrivals",
        INIT
        + """
  if (threadIdx.x == 0) mbarrier_arrive(barrier);
  mbarrier_wait(barrier, 0);
  mbarrier_wait(barrier, 1);  // here
""",
    ),
    loading(
        "mbarrier_polled_forever",
        r"mbarrier_try_wait: polls forever",
        INIT
        + """
  while (!mbarrier_try_wait(barrier, 0)) {  // here
  }
""",
    ),
    loading(
        "mbarrier_parity_that_passes_early",
        r"race: this read of shared byte|its copy has not been waited for|deadlock",
        INIT
        + f"""
  if (threadIdx.x == 0) {{
    mbarrier_arrive_expect_tx(barrier, 512);
    {LOAD}
  }}
  __syncwarp();
  mbarrier_wait(barrier, 1);  // here
  p.out[threadIdx.x] = words[threadIdx.x];  // here
""",
    ),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", RULES, ids=ids(RULES))
def test_a_broken_rule_of_mbarriers_is_reported(rule: Rule, seed: int) -> None:
    rule.check(seed)
