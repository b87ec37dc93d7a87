"""Probes of wgmma: every type, layout and source of operands, with sums that are exact in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from pagegen.dtypes import dtype
from pagegen.wgmma import Wgmma
from tests.probes.probe import Array, Arrays, Probe, kernel

PARTIALS = ("types", "copy", "fp8", "proxy", "wgmma", "wgmma_descriptor")
M = 64
STEPS = 2  # products on the same registers

BODY = """
  extern __shared__ __align__(1024) unsigned char shared[];
  for (int i = threadIdx.x; i < BYTES / 4; i += 128) {
    reinterpret_cast<unsigned*>(shared)[i] = p.image[i];
  }
  fence_proxy_async();
  __syncthreads();
  float d[N / 2];
  for (int i = 0; i < N / 2; ++i) d[i] = __uint_as_float(0x7fffffff);
OPERANDS
  pin_registers(d);
  wgmma_fence();
  for (int i = 0; i < 2; ++i) {
    const unsigned long long b = matrix_descriptor(
        shared_address(shared) + B_BEGIN + i * B_STEP, B_LEADING, B_STRIDE, SWIZZLE);
    ISSUE
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin_registers(d);
  for (int i = 0; i < N / 2; ++i) p.out[threadIdx.x * (N / 2) + i] = d[i];
"""
SHARED = """const unsigned long long a = matrix_descriptor(
        shared_address(shared) + i * A_STEP, A_LEADING, A_STRIDE, SWIZZLE);
    wgmma_ss<T, A_MAJOR, B_MAJOR>(d, a, b, i > 0);"""
REGISTERS = "wgmma_rs<T, B_MAJOR>(d, a[i], b, i > 0);"
LOAD_REGISTERS = """
  unsigned a[2][4];
  for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = p.a[threadIdx.x * 8 + i];
  pin_registers(a[0]);
  pin_registers(a[1]);
"""


@dataclass(frozen=True)
class Layout:
    """How [rows, K] lies in shared memory: which bytes of an image, and what a descriptor says."""

    mn_major: bool
    swizzle: int  # bytes
    rows: int
    size: int  # bytes of an element

    @property
    def pitch(self) -> int:
        """Bytes of a row of 8 that follow each other."""
        return self.swizzle or 16

    @property
    def depth(self) -> int:
        """Elements of K in all steps."""
        return STEPS * 32 // self.size

    @property
    def leading(self) -> int:
        if not self.swizzle:
            return 128
        return 8 * self.pitch * (self.depth // 8) if self.mn_major else 0

    @property
    def stride(self) -> int:
        if self.swizzle:
            return 8 * self.pitch
        return 128 * (self.depth // 8 if self.mn_major else self.depth * self.size // 16)

    @property
    def step(self) -> int:
        """Bytes from one step's first unit to the next's."""
        if self.mn_major:
            return 2 * (self.stride if self.swizzle else self.leading)
        if not self.swizzle:
            return 2 * self.leading
        return 32 if self.swizzle > 32 else self.rows * self.pitch

    def places(self) -> Array:
        """[rows, depth]: the byte at which each element begins."""
        row, k = np.meshgrid(np.arange(self.rows), np.arange(self.depth), indexing="ij")
        along, across = (row, k) if self.mn_major else (k, row)
        if self.swizzle == 0:
            group, inside = divmod(along * self.size, 16)
            along_step, across_step = (
                (self.stride, self.leading) if self.mn_major else (self.leading, self.stride)
            )
            return np.asarray(
                group * along_step + across // 8 * across_step + across % 8 * 16 + inside
            )
        slab, inside = divmod(along * self.size, self.pitch)
        slab_bytes = self.leading if self.mn_major else self.rows * self.pitch
        flat = slab * slab_bytes + across * self.pitch + inside
        line, unit = flat // 128, flat // 16 % 8
        return np.asarray(line * 128 + (unit ^ line % (self.pitch // 16)) * 16 + flat % 16)

    def image(self, values: Array) -> Array:
        """Bytes, a multiple of 1024, with elements where they belong and ones elsewhere."""
        places = self.places()
        end = int(places.max()) + self.size
        image = np.full((end + 1023) // 1024 * 1024, 0xFF, np.uint8)
        for byte in range(self.size):
            image[places + byte] = values >> (8 * byte) & 0xFF
        return image


def bits_of(values: Array, name: str) -> Array:
    """Small integers in a format, as raw bits."""
    narrow = torch.from_numpy(values.astype(np.float32)).to(getattr(torch, dtype(name).torch))
    kind = torch.int16 if narrow.element_size() == 2 else torch.uint8
    return np.asarray(narrow.view(kind).numpy().view(f"u{narrow.element_size()}"), np.int64)


def registers_of(bits: Array, size: int) -> Array:
    """[64, K] as each thread holds it, 4 registers a step: rows of 16 to a warp."""
    out = np.zeros((128, STEPS, 4), np.uint32)
    num = 4 // size
    for thread in range(128):
        for step, register in product(range(STEPS), range(4)):
            row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8
            k = step * 8 * num + register // 2 * 4 * num + thread % 4 * num
            for i in range(num):
                out[thread, step, register] |= np.uint32(int(bits[row, k + i]) << 8 * size * i)
    return out.reshape(-1)


def fragments_of(d: Array) -> Array:
    """[64, N] as each thread holds it."""
    n = d.shape[1]
    thread, i = np.meshgrid(np.arange(128), np.arange(n // 2), indexing="ij")
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    column = i // 4 * 8 + thread % 4 * 2 + i % 2
    return np.asarray(d[row, column], np.float32)


def wgmma(name: str, n: int, swizzle: int, *, a_mn: bool = False, b_mn: bool = False,
          registers: bool = False) -> Probe:  # fmt: skip
    """Two products of one shape on the same registers."""
    element = dtype(name)
    a = Layout(a_mn, swizzle, M, element.num_bytes)
    b = Layout(b_mn, swizzle, n, element.num_bytes)
    row, k = np.meshgrid(np.arange(M), np.arange(a.depth), indexing="ij")
    left = (row * 7 + k * 3) % 9 - 4
    row, k = np.meshgrid(np.arange(n), np.arange(a.depth), indexing="ij")
    right = (row * 5 + k * 11 + row * k) % 9 - 4
    left_bits, right_bits = bits_of(left, name), bits_of(right, name)
    a_image = np.zeros(0, np.uint8) if registers else a.image(left_bits)
    image = np.concatenate([a_image, b.image(right_bits)])
    result = fragments_of((left @ right.T).astype(np.float32))
    numbers = {
        "N": n, "BYTES": len(image), "B_BEGIN": len(a_image),
        "A_STEP": a.step, "A_LEADING": a.leading, "A_STRIDE": a.stride,
        "B_STEP": b.step, "B_LEADING": b.leading, "B_STRIDE": b.stride,
    }  # fmt: skip
    body = BODY.replace("ISSUE", REGISTERS if registers else SHARED)
    body = body.replace("OPERANDS", LOAD_REGISTERS if registers else "")
    body = body.replace("SWIZZLE", f"SWIZZLE_{swizzle or 'NONE'}").replace("<T", f"<{element.cuda}")
    for operand, major in (("A", a_mn), ("B", b_mn)):
        body = body.replace(f"{operand}_MAJOR", "MN_MAJOR" if major else "K_MAJOR")
    constants = "".join(f"constexpr int {key} = {value};\n" for key, value in numbers.items())
    inputs: Arrays = {"image": image.view(np.uint32)}
    if registers:
        inputs = {**inputs, "a": registers_of(left_bits, element.num_bytes)}
    majors = ("_a_mn" if a_mn else "") + ("_b_mn" if b_mn else "")
    return Probe(
        name=f"wgmma_{'rs' if registers else 'ss'}_{name}_n{n}_swizzle_{swizzle}{majors}",
        partials=PARTIALS,
        body=constants + kernel(body, threads=128),
        inputs=lambda: inputs,
        outputs=lambda: {"out": np.zeros_like(result)},
        reference=lambda _: {"out": result},
        wgmmas=(Wgmma(element, n, registers),),
        threads=128,
        shared_bytes=len(image),
    )


SWIZZLES = (0, 32, 64, 128)
FLOAT8 = ("fp8_e4m3", "fp8_e5m2")

PRODUCTS: tuple[Probe, ...] = (
    *(wgmma(name, 64, swizzle) for name in ("bf16", "fp16", *FLOAT8) for swizzle in SWIZZLES),
    *(wgmma("bf16", n, 128) for n in (8, 16, 24, 128, 176, 256)),
    *(wgmma("fp16", n, 128) for n in (8, 256)),
    *(wgmma(name, n, 128) for name in FLOAT8 for n in (8, 128, 256)),
    *(wgmma("bf16", 64, swizzle, b_mn=True) for swizzle in SWIZZLES),
    *(wgmma("bf16", 128, swizzle, a_mn=True) for swizzle in SWIZZLES),
    *(wgmma("fp16", 128, swizzle, a_mn=True, b_mn=True) for swizzle in SWIZZLES),
    *(wgmma(name, n, 128, b_mn=True) for name in ("bf16", "fp16") for n in (8, 256)),
    *(wgmma(name, 64, 128, registers=True) for name in ("bf16", "fp16", *FLOAT8)),
    *(wgmma(name, 256, 64, registers=True) for name in ("bf16", "fp8_e4m3")),
    *(wgmma(name, 128, 128, registers=True, b_mn=True) for name in ("bf16", "fp16")),
    wgmma("bf16", 8, 0, registers=True),
)
