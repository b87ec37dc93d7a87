"""Probes of what a warp does together: matrices, shuffles, votes; and of copies by threads."""

from __future__ import annotations

import numpy as np
import torch

from tests.probes.probe import Array, Arrays, Probe, kernel, mixed

LANES = np.arange(32)

# Rows of 16 bytes with 16 between them: 8 of a matrix, then of the next.
LOAD = """
  extern __shared__ __align__(128) unsigned char shared[];
  for (int i = threadIdx.x; i < 256; i += 32) reinterpret_cast<unsigned*>(shared)[i] = p.x[i];
  __syncwarp();
  unsigned matrices[NUM];
  load_matrix_xNUM(matrices, shared_address(shared) + threadIdx.x * 32);
  for (int i = 0; i < NUM; ++i) p.out[threadIdx.x * NUM + i] = matrices[i];
"""
STORE = """
  extern __shared__ __align__(128) unsigned char shared[];
  for (int i = threadIdx.x; i < 256; i += 32) reinterpret_cast<unsigned*>(shared)[i] = 0;
  __syncwarp();
  unsigned matrices[4];
  for (int i = 0; i < 4; ++i) matrices[i] = p.x[threadIdx.x * 4 + i];
  store_matrix_x4(shared_address(shared) + threadIdx.x * 32, matrices);
  __syncwarp();
  for (int i = threadIdx.x; i < 256; i += 32) p.out[i] = reinterpret_cast<unsigned*>(shared)[i];
"""
TRANSPOSE = "  p.out[threadIdx.x] = transpose_matrix(p.x[threadIdx.x]);"
MMA = """
  float d[4];
  unsigned a[4];
  for (int i = 0; i < 4; ++i) d[i] = p.d[threadIdx.x * 4 + i];
  for (int i = 0; i < 4; ++i) a[i] = p.a[threadIdx.x * 4 + i];
  mma<T>(d, a, p.b[threadIdx.x * 2], p.b[threadIdx.x * 2 + 1]);
  for (int i = 0; i < 4; ++i) p.out[threadIdx.x * 4 + i] = d[i];
"""
SHUFFLES = """
  const unsigned x = p.x[threadIdx.x];
  const int lane = threadIdx.x;
  p.out[lane] = __shfl_sync(0xffffffff, x, x % 32);
  p.out[32 + lane] = __shfl_xor_sync(0xffffffff, x, 5);
  p.out[64 + lane] = __ballot_sync(0xffffffff, x % 3 == 0);
  p.out[96 + lane] = __any_sync(0xffffffff, x % 64 == 1) + 2 * __all_sync(0xffffffff, x != 0);
  if (lane % 2) p.out[128 + lane] = __shfl_sync(0xaaaaaaaa, x, lane ^ 2) + __popc(x) + __clz(x);
"""
COPIES = """
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned to = shared_address(shared);
  const int i = threadIdx.x;
  copy_async_16(to + 16 * i, p.x + 4 * (31 - i), i % 3 != 0);
  commit_copies();
  copy_async_4(to + 512 + 4 * i, p.x + 2 * i, i % 5 != 0);
  commit_copies();
  wait_copies<1>();
  const uint4 first = reinterpret_cast<const uint4*>(shared)[i];
  wait_copies<0>();
  const unsigned second = reinterpret_cast<const unsigned*>(shared + 512)[i];
  copy_async_4(to + 512 + 4 * i, p.x + i, true);
  wait_all_copies();
  p.out[640 / 4 + i] = reinterpret_cast<const unsigned*>(shared + 512)[i];
  store_16(p.out + 4 * i, first);
  p.out[128 + i] = second;
"""
VECTORS = "  store_16(p.out + 4 * threadIdx.x, load_16(p.x + 4 * (threadIdx.x ^ 7)));"
ELECT = "  p.out[threadIdx.x] = elect_one() ? 100 + threadIdx.x : threadIdx.x;"


def halves(words: Array) -> Array:
    return words.view(np.uint16)


def rows_of(x: Array) -> Array:
    """[32 rows, 8]: what the lanes point at."""
    return halves(x).reshape(32, 16)[:, :8]


def held(matrices: Array) -> Array:
    """[num, 8, 8] as lanes hold them: pairs along a row."""
    pairs = matrices.reshape(len(matrices), 32, 2)
    return np.ascontiguousarray(pairs.transpose(1, 0, 2)).reshape(-1).view(np.uint32)


def load(num: int, transposed: bool) -> Probe:
    name = f"load_matrix_x{num}{'_trans' if transposed else ''}"

    def reference(inputs: Arrays) -> Arrays:
        matrices = rows_of(inputs["x"])[: 8 * num].reshape(num, 8, 8)
        return {"out": held(matrices.transpose(0, 2, 1) if transposed else matrices)}

    body = LOAD.replace("load_matrix_xNUM", name).replace("NUM", str(num))
    return Probe(
        name=name,
        partials=("types", "copy", "mma", "mma_narrow"),
        body=kernel(body),
        inputs=lambda: {"x": mixed(256)},
        outputs=lambda: {"out": np.zeros(32 * num, np.uint32)},
        reference=reference,
        shared_bytes=1024,
    )


def store(transposed: bool) -> Probe:
    name = f"store_matrix_x4{'_trans' if transposed else ''}"

    def reference(inputs: Arrays) -> Arrays:
        pairs = halves(inputs["x"]).reshape(32, 4, 2).transpose(1, 0, 2)
        matrices = pairs.reshape(4, 8, 8)
        out = np.zeros((32, 16), np.uint16)
        out[:, :8] = (matrices.transpose(0, 2, 1) if transposed else matrices).reshape(32, 8)
        return {"out": out.reshape(-1).view(np.uint32)}

    return Probe(
        name=name,
        partials=("copy", "matrix_store"),
        body=kernel(STORE.replace("store_matrix_x4", name)),
        inputs=lambda: {"x": mixed(128)},
        outputs=lambda: {"out": np.zeros(256, np.uint32)},
        reference=reference,
        shared_bytes=1024,
    )


def transpose(inputs: Arrays) -> Arrays:
    matrix = halves(inputs["x"]).reshape(8, 8)
    return {"out": np.ascontiguousarray(matrix.T).reshape(-1).view(np.uint32)}


def narrow(kind: str, values: Array) -> Array:
    """Small integers in bf16 or fp16, as bits."""
    wide = torch.from_numpy(values.astype(np.float32))
    bits = wide.to(torch.bfloat16 if kind == "bf16_t" else torch.float16).view(torch.int16)
    return np.asarray(bits.numpy().view(np.uint16))


def mma(kind: str) -> Probe:
    row, k = np.meshgrid(np.arange(16), np.arange(16), indexing="ij")
    a = (row * 7 + k * 3) % 13 - 6
    b = ((row * 5 + k * 11) % 11 - 5)[:, :8]
    start = (np.arange(128).reshape(16, 8) * 37) % 101 - 50
    bits = narrow(kind, a)
    blocks = np.stack([bits[:8, :8], bits[8:, :8], bits[:8, 8:], bits[8:, 8:]])
    columns = narrow(kind, b).T  # [8, 16]: pairs along K
    pairs = np.stack([columns[:, :8], columns[:, 8:]])

    def lanes(d: Array) -> Array:
        quads = np.stack([d[:8], d[8:]]).astype(np.float32).reshape(2, 32, 2)
        return np.ascontiguousarray(quads.transpose(1, 0, 2)).reshape(-1)

    inputs = {"a": held(blocks), "b": held(pairs), "d": lanes(start)}
    return Probe(
        name=f"mma_{kind}",
        partials=("types", "mma"),
        body=kernel(MMA.replace("<T>", f"<{kind}>")),
        inputs=lambda: inputs,
        outputs=lambda: {"out": np.zeros(128, np.float32)},
        reference=lambda _: {"out": lanes(start + a @ b)},
    )


def shuffles(inputs: Arrays) -> Arrays:
    x = inputs["x"]
    out = np.zeros(160, np.uint32)
    out[:32] = x[x % 32]
    out[32:64] = x[LANES ^ 5]
    out[64:96] = sum(1 << lane for lane in range(32) if x[lane] % 3 == 0)
    out[96:128] = int((x % 64 == 1).any()) + 2 * int((x != 0).all())
    ones = np.array([int(word).bit_count() for word in x])
    zeros = np.array([32 - int(word).bit_length() for word in x])
    odd = LANES[1::2]
    out[128 + odd] = x[odd ^ 2] + (ones + zeros)[odd].astype(np.uint32)
    return {"out": out}


def copies(inputs: Arrays) -> Arrays:
    x = inputs["x"]
    first = x[:128].reshape(32, 4)[::-1] * (LANES % 3 != 0)[:, None].astype(np.uint32)
    second = x[:64:2] * (LANES % 5 != 0).astype(np.uint32)
    return {"out": np.concatenate([first.reshape(-1), second, x[:32]])}


WARPS: tuple[Probe, ...] = (
    *(load(num, transposed) for num in (1, 2, 4) for transposed in (False, True)),
    store(False),
    store(True),
    mma("bf16_t"),
    mma("fp16_t"),
    Probe(
        name="transpose_matrix",
        partials=("types", "mma"),
        body=kernel(TRANSPOSE),
        inputs=lambda: {"x": mixed(32)},
        outputs=lambda: {"out": np.zeros(32, np.uint32)},
        reference=transpose,
    ),
    Probe(
        name="shuffles_and_votes",
        partials=(),
        body=kernel(SHUFFLES),
        inputs=lambda: {"x": mixed(32)},
        outputs=lambda: {"out": np.zeros(160, np.uint32)},
        reference=shuffles,
    ),
    Probe(
        name="copies_and_zeros",
        partials=("copy", "vector"),
        body=kernel(COPIES),
        inputs=lambda: {"x": mixed(128)},
        outputs=lambda: {"out": np.zeros(192, np.uint32)},
        reference=copies,
        shared_bytes=640,
    ),
    Probe(
        name="vectors",
        partials=("vector",),
        body=kernel(VECTORS),
        inputs=lambda: {"x": mixed(128)},
        outputs=lambda: {"out": np.zeros(128, np.uint32)},
        reference=lambda inputs: {"out": inputs["x"].reshape(32, 4)[LANES ^ 7].reshape(-1)},
    ),
    Probe(
        name="elect_one",
        partials=("warpgroup",),
        body=kernel(ELECT),
        inputs=lambda: {},
        outputs=lambda: {"out": np.zeros(32, np.uint32)},
        reference=lambda _: {"out": (LANES + 100 * (LANES == 0)).astype(np.uint32)},
    ),
)
