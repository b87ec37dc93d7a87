"""A probe of all together: one warp fetches tiles, a warpgroup multiplies them, in a ring."""

from __future__ import annotations

import numpy as np

from pagegen.dtypes import dtype
from pagegen.wgmma import Wgmma
from tests.probes.probe import Arrays, Box, Probe, kernel
from tests.probes.products import bits_of, fragments_of

# S = Q K^T for Q [64, 64] and tiles of 64 tokens, in blocks of 16 by a table; O += S V with S in
# registers and V MN-major.
PIPELINE = """
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned base = shared_address(shared);
  const unsigned full = base + 8192 + 2 * 16384;
  const unsigned empty = full + 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 1);
    }
    fence_mbarrier_init();
  }
  for (int i = threadIdx.x; i < 2048; i += 256) {
    reinterpret_cast<unsigned*>(shared)[i] = p.q[i];
  }
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x >= 128) {
    setmaxnreg_dec<24>();
    if (threadIdx.x < 160 && elect_one()) {
      for (int i = 0; i < TILES; ++i) {
        const int place = i % 2;
        mbarrier_wait(empty + 8 * place, i / 2 % 2 ^ 1);
        mbarrier_arrive_expect_tx(full + 8 * place, 16384);
        for (int block = 0; block < 4; ++block) {
          const int id = p.ids[4 * i + block];
          const unsigned to = base + 8192 + place * 16384 + block * 2048;
          tma_load_5d(to, p.k, full + 8 * place, 0, 0, 1, 0, id);
          tma_load_5d(to + 8192, p.v, full + 8 * place, 0, 0, 1, 0, id);
        }
      }
    }
  } else {
    setmaxnreg_inc<240>();
    float scores[32];
    float out[32];
    for (int i = 0; i < TILES; ++i) {
      const int place = i % 2;
      const unsigned k_tile = base + 8192 + place * 16384;
      mbarrier_wait(full + 8 * place, i / 2 % 2);
      pin_registers(scores);
      wgmma_fence();
      for (int k = 0; k < 4; ++k) {
        wgmma_ss<bf16_t>(scores, matrix_descriptor(base + 32 * k, 0, 1024, SWIZZLE_128),
                         matrix_descriptor(k_tile + 32 * k, 0, 1024, SWIZZLE_128), k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin_registers(scores);
      unsigned weights[4][4];
      for (int k = 0; k < 4; ++k) {
        for (int j = 0; j < 4; ++j) {
          weights[k][j] = pack<bf16_t>(scores[8 * k + 2 * j], scores[8 * k + 2 * j + 1]);
        }
        pin_registers(weights[k]);
      }
      pin_registers(out);
      wgmma_fence();
      for (int k = 0; k < 4; ++k) {
        wgmma_rs<bf16_t, MN_MAJOR>(
            out, weights[k], matrix_descriptor(k_tile + 8192 + 2048 * k, 0, 1024, SWIZZLE_128),
            i + k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin_registers(out);
      if (threadIdx.x == 0) mbarrier_arrive(empty + 8 * place);
    }
    for (int i = 0; i < 32; ++i) p.out[threadIdx.x * 32 + i] = out[i];
  }
"""
TILES = 5
BLOCKS = 24
IDS = (np.arange(4 * TILES) * 7 % BLOCKS).astype(np.int32)
POOL = Box("cache", (64, 8, 2, 2, BLOCKS), (256, 128, 2048, 4096), (64, 8, 1, 2, 1), 128)


def pipeline() -> Probe:
    """Small integers and many zeros, so that bf16 holds every score, and fp32 every sum."""
    row, k = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    q = ((row * 7 + k * 3) % 5 - 2) * ((row + k) % 3 == 0)
    token, dim = np.meshgrid(np.arange(16 * BLOCKS), np.arange(128), indexing="ij")
    cache = ((token * 5 + dim * 11 + token * dim) % 5 - 2) * ((token + dim) % 2)
    unit = np.arange(64 * 64).reshape(64, 8, 8)
    image = np.empty(64 * 64, np.uint16)
    place = (np.arange(64)[:, None] * 8 + (np.arange(8) ^ np.arange(64)[:, None] % 8)) * 8
    image[(place[:, :, None] + np.arange(8)).reshape(-1)] = bits_of(q, "bf16").astype(np.uint16)[
        unit.reshape(-1) // 64, unit.reshape(-1) % 64
    ]
    keys = cache.reshape(BLOCKS, 16, 128)[IDS].reshape(-1, 64, 128)[:, :, 64:]
    values = keys  # the same pool: K and V are one tensor here
    result = np.zeros((64, 64))
    for tile in range(TILES):
        scores = q @ keys[tile].T
        assert np.abs(scores).max() <= 256
        result += scores @ values[tile]
    assert np.abs(result).max() < 2**24
    fragments = fragments_of(result)
    inputs: Arrays = {
        "q": image.view(np.uint32),
        "ids": IDS,
        "cache": bits_of(cache, "bf16").astype(np.uint16).reshape(-1),
    }
    return Probe(
        name="pipeline",
        partials=("types", "copy", "proxy", "mbarrier", "tma", "warpgroup", "fp8", "wgmma",
                  "wgmma_descriptor"),
        body=f"constexpr int TILES = {TILES};\n" + kernel(PIPELINE, threads=256),
        inputs=lambda: inputs,
        outputs=lambda: {"out": np.zeros_like(fragments)},
        reference=lambda _: {"out": fragments},
        maps={"k": POOL, "v": POOL},
        wgmmas=(Wgmma(dtype("bf16"), 64), Wgmma(dtype("bf16"), 64, a_in_registers=True)),
        threads=256,
        shared_bytes=8192 + 2 * 16384 + 32,
    )  # fmt: skip
