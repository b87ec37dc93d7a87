"""Probes of boxes and runs of bytes that complete on mbarriers, and of boxes that are stored."""

from __future__ import annotations

from itertools import product

import numpy as np

from tests.probes.probe import Array, Arrays, Box, Probe, kernel, mixed

PARTIALS = ("copy", "proxy", "mbarrier", "tma")
UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32"}

# One barrier, one box after another in the same place; every byte of it goes out.
LOADS = """
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned barrier = shared_address(shared + TO + BYTES);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.map);
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  for (int i = 0; i < BOXES; ++i) {
    const int* at = p.at + RANK * i;
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect_tx(barrier, BYTES);
      LOAD;
    }
    mbarrier_wait(barrier, i % 2);
    for (int j = threadIdx.x; j < BYTES; j += 64) p.out[i * BYTES + j] = shared[TO + j];
    __syncthreads();
  }
"""

STORES = """
  extern __shared__ __align__(1024) unsigned char shared[];
  for (int i = 0; i < BOXES; ++i) {
    for (int j = threadIdx.x; j < BYTES; j += 64) shared[j] = p.from[i * BYTES + j];
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
      const int* at = p.at + RANK * i;
      STORE;
      tma_commit_stores();
      tma_wait_store_reads<0>();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) tma_wait_stores<0>();
"""

RUNS = """
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned barrier = shared_address(shared + 4096);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_expect_tx(barrier, 48);
    mbarrier_arrive_expect_tx(barrier, 2064);
    bulk_load(shared_address(shared + 16), p.from + 32, 48, barrier);
    bulk_load(shared_address(shared + 1024), p.from + 4096, 2064, barrier);
  }
  __syncthreads();
  mbarrier_wait(barrier, 0);
  for (int j = threadIdx.x; j < 48; j += 64) p.out[j] = shared[16 + j];
  for (int j = threadIdx.x; j < 2064; j += 64) p.out[48 + j] = shared[1024 + j];
"""


def swizzled(box: Array, swizzle: int, to: int = 0) -> Array:
    """Bytes as they lie in shared memory from `to` on, given in the order of the box.

    Of the 8 units of 16 bytes in a row of 128, unit c goes to c xor the row's number, of which
    as many counts matter as a swizzle has units.
    """
    if swizzle == 0:
        return box
    units = box.reshape(-1, 16)
    number = to // 16 + np.arange(len(units))
    row, place = number // 8, number % 8
    out = np.empty_like(units)
    out[row * 8 + (place ^ row % (swizzle // 16)) - to // 16] = units
    return out.reshape(-1)


def box_at(memory: Array, box: Box, at: tuple[int, ...], unit: int = 1) -> tuple[Array, Array]:
    """(which elements of memory the box has, which are in the tensor); outermost first.

    The tensor's rows end at a multiple of `unit` bytes.
    """
    row = -(-box.sizes[0] * memory.itemsize // unit) * unit // memory.itemsize
    sizes = (row, *box.sizes[1:])
    strides = (memory.itemsize, *box.strides)
    index = np.zeros(box.box[::-1], dtype=np.int64)
    inside = np.ones(box.box[::-1], dtype=bool)
    for dimension, (size, stride, side, start) in enumerate(
        zip(sizes, strides, box.box, at, strict=True)
    ):
        places = start + np.arange(side)
        shape = [1] * len(box.box)
        shape[len(box.box) - 1 - dimension] = side
        index = index + (places * (stride // memory.itemsize)).reshape(shape)
        inside = inside & ((places >= 0) & (places < size)).reshape(shape)
    return np.where(inside, index, 0), inside


def memory_of(box: Box, size: int) -> Array:
    """Elements enough for the tensor of a box, its last row rounded up to 16 bytes."""
    reach = sum((n - 1) * s for n, s in zip(box.sizes[1:], box.strides, strict=True))
    row = -(-box.sizes[0] * size // 16) * 16
    return mixed((reach + row) // size).astype(UNSIGNED[size])


def bytes_of(box: Box, size: int) -> int:
    return int(np.prod(box.box)) * size


def call(function: str, arguments: str, rank: int, last: str = "") -> str:
    coordinates = ", ".join(f"at[{i}]" for i in range(rank))
    return f"{function}_{rank}d{'_hint' if last else ''}({arguments}, {coordinates}{last})"


def load(name: str, box: Box, size: int, places: tuple[tuple[int, ...], ...], *, to: int = 0,
         policy: str = "") -> Probe:  # fmt: skip
    """Boxes of one map, at several coordinates."""
    num_bytes, rank = bytes_of(box, size), len(box.sizes)
    body = LOADS.replace("LOAD;", call(
        "tma_load", "shared_address(shared + TO), p.map, barrier", rank, policy) + ";")  # fmt: skip
    numbers = {"TO": to, "BYTES": num_bytes, "BOXES": len(places), "RANK": rank}
    constants = "".join(f"constexpr int {key} = {value};\n" for key, value in numbers.items())
    memory = memory_of(box, size)

    def reference(inputs: Arrays) -> Arrays:
        out = []
        for at in places:
            index, inside = box_at(memory, box, at)
            values = np.where(inside, memory[index], 0).astype(memory.dtype)
            out.append(swizzled(values.view(np.uint8).reshape(-1), box.swizzle, to))
        return {"out": np.concatenate(out)}

    return Probe(
        name=name,
        partials=PARTIALS,
        body=constants + kernel(body, threads=64),
        inputs=lambda: {"x": memory, "at": np.array(places, np.int32)},
        outputs=lambda: {"out": np.zeros(num_bytes * len(places), np.uint8)},
        reference=reference,
        maps={"map": box},
        threads=64,
        shared_bytes=to + num_bytes + 16,
    )


def store(name: str, box: Box, size: int, places: tuple[tuple[int, ...], ...]) -> Probe:
    """Boxes stored at several coordinates, some of which lie outside."""
    num_bytes, rank = bytes_of(box, size), len(box.sizes)
    body = STORES.replace("STORE;", call(
        "tma_store", "p.map, shared_address(shared)", rank) + ";")  # fmt: skip
    numbers = {"BYTES": num_bytes, "BOXES": len(places), "RANK": rank}
    constants = "".join(f"constexpr int {key} = {value};\n" for key, value in numbers.items())
    memory = np.zeros_like(memory_of(box, size))
    given = mixed(num_bytes * len(places)).astype(np.uint8)

    def reference(inputs: Arrays) -> Arrays:
        out = memory.copy()
        units = np.arange(num_bytes, dtype=np.int64)
        order = swizzled_order(units, box.swizzle)
        for i, at in enumerate(places):
            index, inside = box_at(memory, box, at, unit=16)  # stores write whole units
            values = given[i * num_bytes : (i + 1) * num_bytes][order].copy().view(memory.dtype)
            out[index[inside]] = values.reshape(index.shape)[inside]
        return {"x": out}

    return Probe(
        name=name,
        partials=(*PARTIALS, "tma_store"),
        body=constants + kernel(body, threads=64),
        inputs=lambda: {"from": given, "at": np.array(places, np.int32)},
        outputs=lambda: {"x": memory},
        reference=reference,
        maps={"map": box},
        threads=64,
        shared_bytes=num_bytes,
    )


def swizzled_order(places: Array, swizzle: int) -> Array:
    """For each byte of the box in order, where it lies in shared memory."""
    if swizzle == 0:
        return places
    row, unit = places // 128, places // 16 % 8
    return np.asarray(row * 128 + (unit ^ row % (swizzle // 16)) * 16 + places % 16)


def boxes(size: int, swizzle: int) -> Probe:
    """A box of rank 4 whose rows are as wide as the swizzle, inside and over each edge."""
    inner = (swizzle or 64) // size
    row = (3 * inner * size + 15) // 16 * 16 + 16
    box = Box(
        "x",
        sizes=(3 * inner - 16 // size // 2 - 1, 5, 7, 3),
        strides=(row, 6 * row, 43 * row),
        box=(inner, 4, 3, 2),
        swizzle=swizzle,
    )
    left = -16 // size  # coordinates along a row are whole units of 16 bytes
    places = (
        (0, 0, 0, 0),
        (inner, 1, 2, 1),
        (2 * inner, 3, 5, 2),
        (left, -1, -2, -1),
        (0, 0, 0, 9),
    )
    return load(f"tma_4d_{size}_bytes_swizzle_{swizzle}", box, size, places)


def runs(inputs: Arrays) -> Arrays:
    given = inputs["from"]
    return {"out": np.concatenate([given[32:80], given[4096 : 4096 + 2064]])}


# A block of 16 tokens of one of 3 heads, 128 wide, as decode would fetch it: rows in groups of 8.
NHD = Box("x", (64, 8, 6, 2, 5), (768, 128, 6144, 12288), (64, 8, 2, 2, 1), 128)
HND = Box("x", (64, 8, 2, 2, 15), (256, 128, 2048, 4096), (64, 8, 2, 2, 1), 128)
FLAT = Box("x", (40, 3, 4, 3, 2), (96, 288, 1152, 3456), (32, 2, 2, 2, 2), 0)

COPIES: tuple[Probe, ...] = (
    *(boxes(size, swizzle) for size, swizzle in product((1, 2, 4), (0, 32, 64, 128))),
    load("tma_5d_nhd_block", NHD, 2, ((0, 0, 2, 0, 3), (0, 0, 4, 0, 0), (0, 0, 0, 0, 5))),
    load("tma_5d_hnd_block", HND, 2, ((0, 0, 0, 0, 14), (0, 0, 0, 0, 2), (0, 0, 0, 0, -1))),
    load("tma_5d_flat", FLAT, 2, ((0, 0, 0, 0, 0), (16, 2, 3, 1, 1), (-8, 0, -1, 2, 0))),
    load("tma_4d_hint", Box("x", (64, 8, 2, 2), (128, 1024, 2048), (64, 8, 1, 2), 128), 2,
         ((0, 0, 1, 0), (0, 4, 0, 1)), policy=", l2_evict_first()"),
    load("tma_5d_hint", NHD, 2, ((0, 0, 2, 0, 1),), policy=", l2_evict_last()"),
    load("tma_4d_swizzle_from_row_3",
         Box("x", (64, 16, 1, 1), (128, 2048, 2048), (64, 8, 1, 1), 128), 2,
         ((0, 2, 0, 0),), to=384),
    store("tma_store_4d",
          Box("x", (100, 5, 4, 2), (208, 1056, 4240), (64, 4, 2, 1), 128), 2,
          ((0, 0, 0, 0), (64, 4, 2, 1))),
    store("tma_store_5d", FLAT, 2, ((0, 0, 0, 0, 0), (32, 2, 2, 2, 0))),
    Probe(
        name="bulk_load",
        partials=PARTIALS,
        body=kernel(RUNS, threads=64),
        inputs=lambda: {"from": mixed(8192).astype(np.uint8)},
        outputs=lambda: {"out": np.zeros(48 + 2064, np.uint8)},
        reference=runs,
        threads=64,
        shared_bytes=4096 + 8,
    ),
)  # fmt: skip
