"""Kernels that break rules of mbarriers and of the copy engine: what they have in common."""

from __future__ import annotations

from collections.abc import Mapping

from tests.probes.probe import Box
from tests.simulate.rules import Rule

BARRIERS = ("copy", "proxy", "mbarrier", "warpgroup")
LOADS = (*BARRIERS, "tma", "tma_store")

BEGIN = """
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared);
  const unsigned base = shared_address(shared);
  const unsigned barrier = base + 1024;
"""
INIT = (
    BEGIN
    + """
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
"""
)
# The engine copies 512 bytes of x.
BOX = {"map": Box("x", (32, 8, 4, 1), (128, 1024, 4096), (32, 4, 1, 1), 128)}
LOAD = "tma_load_4d(base, p.map, barrier, 0, 0, 0, 0);"


def loading(name: str, said: str, body: str, *, threads: int = 32, shared_bytes: int = 1040,
            maps: Mapping[str, Box] = BOX) -> Rule:  # fmt: skip
    """A rule for a kernel that has an mbarrier behind 1024 bytes."""
    return Rule(name, said, body, LOADS, threads, shared_bytes=shared_bytes, maps=maps)
