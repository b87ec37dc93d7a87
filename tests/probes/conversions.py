"""Probes of number formats: every code of the narrow ones, and floats that are hard to round."""

from __future__ import annotations

import numpy as np
import torch

from tests.probes.probe import Array, Arrays, Probe, kernel, mixed

TYPES = {
    "bf16_t": "bfloat16",
    "fp16_t": "float16",
    "e4m3_t": "float8_e4m3fn",
    "e5m2_t": "float8_e5m2",
}
LARGEST = {"e4m3_t": 448.0, "e5m2_t": 57344.0}  # what is larger becomes this
CANONICAL_NAN = {"bf16_t": 0x7FFF, "fp16_t": 0x7FFF, "e4m3_t": 0x7F, "e5m2_t": 0x7F}
THREADS = 256

FROM_FLOAT = """
  for (int i = blockIdx.x * 256 + threadIdx.x; i < COUNT; i += gridDim.x * 256) {
    const float x = __uint_as_float(p.x[i]);
    p.one[i] = from_float<T>(x).bits;
    p.two[i] = PACK<T>(x, __uint_as_float(p.x[COUNT - 1 - i]));
  }
"""
TO_FLOAT = """
  for (int i = blockIdx.x * 256 + threadIdx.x; i < COUNT; i += gridDim.x * 256) {
    const T x = {p.x[i]};
    p.out[i] = to_float(x);
  }
"""
PAIRS_TO_FP16 = """
  for (int i = threadIdx.x; i < COUNT; i += 256) p.out[i] = fp8x2_to_fp16x2<T>(p.x[i]);
"""
FP16_TO_PAIRS = """
  for (int i = threadIdx.x; i < COUNT; i += 256) p.out[i] = fp16x2_to_fp8x2<T>(p.x[i]);
"""
FUNCTION = """
  for (int i = threadIdx.x; i < COUNT; i += 256) p.out[i] = FUNCTION(p.x[i]);
"""


def codes(kind: str) -> Array:
    """All codes of a format."""
    bits = 8 if kind in LARGEST else 16
    return np.arange(1 << bits, dtype=f"uint{bits}")


def widened(kind: str, bits: Array) -> Array:
    """Codes as fp32, by torch."""
    raw = torch.from_numpy(bits.view(f"int{8 * bits.itemsize}"))
    return np.asarray(raw.view(getattr(torch, TYPES[kind])).float().numpy())


def rounded(kind: str, x: Array) -> Array:
    """fp32 as codes: torch rounds, what it would make infinite or NaN is clamped, NaN is one."""
    wide = torch.from_numpy(x.copy())
    if kind in LARGEST:
        wide = wide.clamp(-LARGEST[kind], LARGEST[kind])
    narrow = wide.to(getattr(torch, TYPES[kind]))
    size = narrow.element_size()
    bits = narrow.view(torch.uint8 if size == 1 else torch.int16).numpy().view(f"uint{8 * size}")
    return np.where(np.isnan(x), CANONICAL_NAN[kind], bits).astype(bits.dtype)


def hard_floats(kind: str) -> Array:
    """Each value of a format, what lies halfway to the next, both sides of both; and extremes."""
    values = np.sort(np.unique(widened(kind, codes(kind)[: len(codes(kind)) // 2])))
    values = values[np.isfinite(values)]
    if len(values) > 4096:
        values = np.concatenate([values[:1100], values[1100::29], values[-64:]])
    halves = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    beyond = values[-1:] + (values[-1:] - values[-2:-1]) * np.array([0.5, 1, 2], np.float32)
    points = np.concatenate([values, halves, beyond.astype(np.float32)])
    bits = points.view(np.uint32).astype(np.int64)
    bits = np.unique(np.clip(bits[:, None] + np.array([-1, 0, 1]), 0, 0x7F800000).ravel())
    extremes = [0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF, 1, 0x007FFFFF]
    words = np.concatenate([bits, extremes, mixed(5000).astype(np.int64) & 0x7FFFFFFF])
    return np.concatenate([words, words | 0x80000000]).astype(np.uint32)


def from_float(kind: str) -> Probe:
    words = hard_floats(kind)
    narrow = kind in LARGEST
    body = FROM_FLOAT.replace("PACK", "pack_fp8x2" if narrow else "pack").replace(
        "<T>", f"<{kind}>"
    )
    one, two = (np.uint8, np.uint16) if narrow else (np.uint16, np.uint32)

    def reference(inputs: Arrays) -> Arrays:
        with np.errstate(invalid="ignore"):
            bits = rounded(kind, words.view(np.float32))
        pair = bits.astype(np.uint32) | bits[::-1].astype(np.uint32) << (8 if narrow else 16)
        return {"one": bits, "two": pair.astype(two)}

    return Probe(
        name=f"from_float_{kind}",
        partials=("types", "fp8"),
        body=f"constexpr int COUNT = {len(words)};\n" + kernel(body, threads=THREADS),
        inputs=lambda: {"x": words},
        outputs=lambda: {"one": np.zeros(len(words), one), "two": np.zeros(len(words), two)},
        reference=reference,
        grid=4,
        threads=THREADS,
    )


def to_float(kind: str) -> Probe:
    bits = codes(kind)

    return Probe(
        name=f"to_float_{kind}",
        partials=("types", "fp8"),
        body=f"constexpr int COUNT = {len(bits)};\n"
        + kernel(TO_FLOAT.replace("const T", f"const {kind}"), threads=THREADS),
        inputs=lambda: {"x": bits},
        outputs=lambda: {"out": np.zeros(len(bits), np.float32)},
        reference=lambda _: {"out": widened(kind, bits)},
        grid=4,
        threads=THREADS,
    )


def pairs_to_fp16(kind: str) -> Probe:
    low = np.arange(256, dtype=np.uint16)
    pairs = np.concatenate([low | (255 - low) << 8, low | low[::-1] * 77 % 256 << 8])
    pairs = pairs.astype(np.uint16)

    def half(bits: Array) -> Array:
        wide = widened(kind, bits.astype(np.uint8))
        return np.where(np.isnan(wide), 0x7FFF, wide.astype(np.float16).view(np.uint16))

    def reference(inputs: Arrays) -> Arrays:
        high = half(pairs >> 8).astype(np.uint32)
        return {"out": half(pairs & 0xFF).astype(np.uint32) | high << np.uint32(16)}

    return Probe(
        name=f"fp8x2_to_fp16x2_{kind}",
        partials=("types", "fp8"),
        body=f"constexpr int COUNT = {len(pairs)};\n"
        + kernel(PAIRS_TO_FP16.replace("<T>", f"<{kind}>"), threads=THREADS),
        inputs=lambda: {"x": pairs},
        outputs=lambda: {"out": np.zeros(len(pairs), np.uint32)},
        reference=reference,
        threads=THREADS,
    )


def fp16_to_pairs(kind: str) -> Probe:
    low = np.arange(1 << 16, dtype=np.uint32)
    pairs = low | low[::-1] << np.uint32(16)

    def narrow(bits: Array) -> Array:
        return rounded(kind, bits.astype(np.uint16).view(np.float16).astype(np.float32))

    def reference(inputs: Arrays) -> Arrays:
        high = narrow(pairs >> 16).astype(np.uint16)
        return {"out": narrow(pairs & 0xFFFF).astype(np.uint16) | high << np.uint16(8)}

    return Probe(
        name=f"fp16x2_to_fp8x2_{kind}",
        partials=("types", "fp8"),
        body=f"constexpr int COUNT = {len(pairs)};\n"
        + kernel(FP16_TO_PAIRS.replace("<T>", f"<{kind}>"), threads=THREADS),
        inputs=lambda: {"x": pairs},
        outputs=lambda: {"out": np.zeros(len(pairs), np.uint16)},
        reference=reference,
        threads=THREADS,
    )


def exponents() -> Array:
    """Where 2^x is normal, and the ends."""
    dense = np.linspace(-125.9, 127.9, 4001, dtype=np.float32)
    near = np.linspace(-1, 1, 1001, dtype=np.float32)
    return np.concatenate(
        [dense, near, np.array([0, -np.inf, np.inf, -1000, 1000, np.nan], np.float32)]
    )


def arguments() -> Array:
    """Of a logarithm: all sizes, and near 1."""
    sizes = np.exp2(np.linspace(-125, 127, 4001)).astype(np.float32)
    near = np.linspace(0.5, 2, 1501, dtype=np.float32)
    return np.concatenate([sizes, near, np.array([0, np.inf, -1, np.nan], np.float32)])


def function(name: str, x: Array, values: Array, rtol: float, atol: float) -> Probe:
    return Probe(
        name=name,
        partials=("exp2",),
        body=f"constexpr int COUNT = {len(x)};\n"
        + kernel(FUNCTION.replace("FUNCTION", name), threads=THREADS),
        inputs=lambda: {"x": x},
        outputs=lambda: {"out": np.zeros(len(x), np.float32)},
        reference=lambda _: {"out": values},
        threads=THREADS,
        rtol=rtol,
        atol=atol,
    )


with np.errstate(all="ignore"):
    CONVERSIONS: tuple[Probe, ...] = (
        *(from_float(kind) for kind in TYPES),
        *(to_float(kind) for kind in TYPES),
        *(pairs_to_fp16(kind) for kind in LARGEST),
        *(fp16_to_pairs(kind) for kind in LARGEST),
        function("exp2_fast", exponents(), np.exp2(exponents()), 3 * 2.0**-23, 0.0),
        function("log2_fast", arguments(), np.log2(arguments()), 2 * 2.0**-23, 2.0**-22),
    )
