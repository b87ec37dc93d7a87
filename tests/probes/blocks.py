"""Probes of what a block and its neighbours do together: phases, named barriers, orders."""

from __future__ import annotations

import numpy as np

from tests.probes.probe import Arrays, Probe, kernel, mixed

THREADS = np.arange(128)

# A ring of two places: warp 0 fills them, three warps take from them.
RING = """
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned* ring = reinterpret_cast<unsigned*>(shared);
  const unsigned full = shared_address(shared + 256);
  const unsigned empty = full + 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + 8 * i, 32);
      mbarrier_init(empty + 8 * i, 96);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) p.passes[0] = mbarrier_try_wait(full, 1) + 2 * mbarrier_try_wait(full, 0);
  __syncthreads();
  const int lane = threadIdx.x % 32;
  unsigned sum = 0;
  for (int i = 0; i < 9; ++i) {
    const int place = i % 2;
    const unsigned parity = i / 2 % 2;
    if (threadIdx.x < 32) {
      mbarrier_wait(empty + 8 * place, parity ^ 1);
      ring[32 * place + lane] = p.x[32 * i + lane];
      mbarrier_arrive(full + 8 * place);
    } else {
      while (!mbarrier_try_wait(full + 8 * place, parity)) {
      }
      sum = sum * 3 + ring[32 * place + (lane ^ threadIdx.x / 32)];
      mbarrier_arrive(empty + 8 * place);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_invalidate(full);
    mbarrier_init(full, 1);
    mbarrier_arrive(full);
  }
  __syncthreads();
  mbarrier_wait(full, 0);
  p.out[threadIdx.x] = sum;
"""


def ring(inputs: Arrays) -> Arrays:
    x = inputs["x"].reshape(9, 32)
    total = np.zeros(128, np.uint32)
    for row in x:
        total = total * np.uint32(3) + row[THREADS % 32 ^ THREADS // 32]
    return {
        "out": np.where(THREADS < 32, 0, total).astype(np.uint32),
        "passes": np.array([1], np.int32),
    }


# Copies by threads, told by an mbarrier, and what one thread adds to a phase later.
COPIES = """
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned barrier = shared_address(shared + 2048);
  if (threadIdx.x == 0) mbarrier_init(barrier, 128);
  __syncthreads();
  for (int i = 0; i < 3; ++i) {
    copy_async_16(shared_address(shared) + 16 * threadIdx.x, p.x + 512 * i + 4 * threadIdx.x, true);
    mbarrier_arrive_copies(barrier);
    mbarrier_wait(barrier, i % 2);
    const int other = 127 - threadIdx.x;
    store_16(p.out + 512 * i + 4 * threadIdx.x, reinterpret_cast<const uint4*>(shared)[other]);
    __syncthreads();
  }
"""

# Warps 0 and 1 leave words for 2 and 3, which answer by another barrier.
NAMED = """
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned* words = reinterpret_cast<unsigned*>(shared);
  unsigned* answers = words + 64;
  const int i = threadIdx.x % 64;
  unsigned sum = 0;
  for (int round = 0; round < 3; ++round) {
    if (threadIdx.x < 64) {
      words[i] = p.x[64 * round + i];
      named_barrier_arrive(1, 128);
      named_barrier_sync(2, 128);
      sum = sum * 5 + answers[63 - i];
    } else {
      named_barrier_sync(1, 128);
      answers[i] = words[i ^ 33] * 3;
      named_barrier_arrive(2, 128);
      sum += words[i];
    }
    named_barrier_sync(round + 3, 128);
  }
  named_barrier_sync(14 + threadIdx.x / 64, 64);
  p.out[threadIdx.x] = sum;
"""


def named(inputs: Arrays) -> Arrays:
    first = np.zeros(64, np.uint32)
    second = np.zeros(64, np.uint32)
    i = np.arange(64)
    for x in inputs["x"].reshape(3, 64):
        answers = x[i ^ 33] * np.uint32(3)
        first = first * np.uint32(5) + answers[63 - i]
        second = second + x
    return {"out": np.concatenate([first, second])}


REGISTERS = """
  if (threadIdx.x < 128) {
    setmaxnreg_dec<24>();
    p.out[threadIdx.x] = threadIdx.x * 3;
  } else {
    setmaxnreg_inc<240>();
    float held[160];
    for (int i = 0; i < 160; ++i) held[i] = i * static_cast<float>(threadIdx.x % 8);
    pin_registers(held);
    float sum = 0.0f;
    for (int i = 0; i < 160; ++i) sum += held[159 - i];
    p.out[threadIdx.x] = static_cast<unsigned>(sum);
  }
"""


def registers(inputs: Arrays) -> Arrays:
    thread = np.arange(384)
    sums = thread % 8 * (159 * 160 // 2)
    return {"out": np.where(thread < 128, thread * 3, sums).astype(np.uint32)}


# The second of two blocks waits for the first.
FLAG = """
  if (blockIdx.x == 0) {
    p.data[threadIdx.x] = p.x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) store_release(p.flag, 7);
  } else {
    if (threadIdx.x == 0) {
      while (load_acquire(p.flag) != 7) {
      }
      add_release(p.flag, 1);
    }
    __syncthreads();
    p.out[threadIdx.x] = p.data[threadIdx.x ^ 1] + 1;
  }
"""

# The last of the blocks to come adds up what all have left.
LAST = """
  extern __shared__ __align__(128) unsigned char shared[];
  int* ticket = reinterpret_cast<int*>(shared);
  p.data[blockIdx.x * 32 + threadIdx.x] = p.x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    fence_gpu();
    *ticket = atomicAdd(p.count, 1);
    fence_gpu();
  }
  __syncthreads();
  if (*ticket != static_cast<int>(gridDim.x) - 1) return;
  unsigned sum = 0;
  for (int i = 0; i < static_cast<int>(gridDim.x); ++i) sum += p.data[i * 32 + threadIdx.x];
  p.out[threadIdx.x] = sum;
"""

ARRIVE = """
  p.data[blockIdx.x * 32 + threadIdx.x] = p.x[blockIdx.x * 32 + threadIdx.x];
  __syncthreads();
  grid_dependency_wait();
  bool is_last = false;
  if (threadIdx.x == 0) is_last = arrive(p.count) == static_cast<int>(gridDim.x) - 1;
  grid_dependency_launch();
  if (!__syncthreads_or(is_last)) return;
  unsigned sum = 0;
  for (int i = 0; i < static_cast<int>(gridDim.x); ++i) sum += p.data[i * 32 + threadIdx.x];
  p.out[threadIdx.x] = sum;
"""


def sums(inputs: Arrays) -> Arrays:
    x = inputs["x"]
    total = x.reshape(-1, 32).sum(0, dtype=np.uint32)
    return {"out": total, "data": x, "count": np.array([len(x) // 32], np.int32)}


BLOCK_PROBES: tuple[Probe, ...] = (
    Probe(
        name="mbarrier_ring",
        partials=("copy", "mbarrier"),
        body=kernel(RING, threads=128),
        inputs=lambda: {"x": mixed(9 * 32)},
        outputs=lambda: {"out": np.zeros(128, np.uint32), "passes": np.zeros(1, np.int32)},
        reference=ring,
        threads=128,
        shared_bytes=288,
    ),
    Probe(
        name="mbarrier_copies",
        partials=("copy", "mbarrier", "vector"),
        body=kernel(COPIES, threads=128),
        inputs=lambda: {"x": mixed(3 * 512)},
        outputs=lambda: {"out": np.zeros(3 * 512, np.uint32)},
        reference=lambda inputs: {
            "out": inputs["x"].reshape(3, 128, 4)[:, ::-1].reshape(-1).copy()
        },
        threads=128,
        shared_bytes=2056,
    ),
    Probe(
        name="named_barriers",
        partials=("warpgroup",),
        body=kernel(NAMED, threads=128),
        inputs=lambda: {"x": mixed(192)},
        outputs=lambda: {"out": np.zeros(128, np.uint32)},
        reference=named,
        threads=128,
        shared_bytes=512,
    ),
    Probe(
        name="setmaxnreg",
        partials=("types", "fp8", "warpgroup", "wgmma"),
        body=kernel(REGISTERS, threads=384),
        inputs=lambda: {},
        outputs=lambda: {"out": np.zeros(384, np.uint32)},
        reference=registers,
        threads=384,
    ),
    Probe(
        name="release_and_acquire",
        partials=("scope",),
        body=kernel(FLAG),
        inputs=lambda: {"x": mixed(32)},
        outputs=lambda: {
            "out": np.zeros(32, np.uint32),
            "data": np.zeros(32, np.uint32),
            "flag": np.zeros(1, np.int32),
        },
        reference=lambda inputs: {
            "out": inputs["x"][np.arange(32) ^ 1] + np.uint32(1),
            "data": inputs["x"],
            "flag": np.array([8], np.int32),
        },
        grid=2,
    ),
    Probe(
        name="fences",
        partials=("scope",),
        body=kernel(LAST),
        inputs=lambda: {"x": mixed(6 * 32)},
        outputs=lambda: {
            "out": np.zeros(32, np.uint32),
            "data": np.zeros(6 * 32, np.uint32),
            "count": np.zeros(1, np.int32),
        },
        reference=sums,
        grid=6,
        shared_bytes=16,
    ),
    Probe(
        name="arrive",
        partials=("arrive", "grid_dependency"),
        body=kernel(ARRIVE),
        inputs=lambda: {"x": mixed(6 * 32)},
        outputs=lambda: {
            "out": np.zeros(32, np.uint32),
            "data": np.zeros(6 * 32, np.uint32),
            "count": np.zeros(1, np.int32),
        },
        reference=sums,
        grid=6,
    ),
)
