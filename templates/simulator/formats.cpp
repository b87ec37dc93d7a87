// Narrow floating-point formats, exactly as hardware converts them.
#include <vector>

#include "primitives.h"

namespace simulator {

namespace {

float widen_fp16(unsigned short bits) {
  const unsigned sign = (bits & 0x8000u) << 16;
  const unsigned exponent = bits >> 10 & 31;
  const unsigned fraction = bits & 0x3ffu;
  if (exponent == 31) return from_bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {
    const float size = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -size : size;
  }
  return from_bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

std::vector<float> all_fp16() {
  std::vector<float> values(1 << 16);
  for (unsigned bits = 0; bits < values.size(); ++bits) {
    values[bits] = widen_fp16(static_cast<unsigned short>(bits));
  }
  return values;
}

// x, finite and not negative, rounded to a multiple of `unit`, ties to the even one.
float round_to_multiple(float x, float unit) { return std::nearbyint(x / unit) * unit; }

unsigned short round_fp16(float x) {
  const unsigned bits = bits_of(x);
  const unsigned sign = bits >> 16 & 0x8000u;
  const float size = std::fabs(x);
  if (size != size) return 0x7fff;
  if (size >= 65520.0f) return static_cast<unsigned short>(sign | 0x7c00u);
  if (size < 0x1p-14f) {
    return static_cast<unsigned short>(
        sign | static_cast<unsigned>(round_to_multiple(size, 0x1p-24f) * 0x1p24f));
  }
  const unsigned rounded = bits_of(size) + 0xfff + (bits_of(size) >> 13 & 1);
  return static_cast<unsigned short>(sign | ((rounded >> 13) - (112u << 10)));
}

unsigned short round_bf16(float x) {
  if (x != x) return 0x7fff;
  const unsigned bits = bits_of(x);
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

float widen(Format format, unsigned short bits) {
  if (format == Format::bf16) return from_bits<float>(static_cast<unsigned>(bits) << 16);
  static const std::vector<float> values = all_fp16();
  return values[bits];
}

unsigned short round_to(Format format, float x) {
  return format == Format::bf16 ? round_bf16(x) : round_fp16(x);
}

}  // namespace simulator
