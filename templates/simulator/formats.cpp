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

// 8 bits: no infinity in e4m3, whose last code is NaN; e5m2 is the upper half of fp16.
float widen_e4m3(unsigned bits) {
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  const unsigned exponent = bits >> 3 & 15;
  const auto fraction = static_cast<float>(bits & 7);
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  if (exponent == 0) return sign * fraction * 0x1p-9f;
  return sign * std::ldexp(1.0f + fraction / 8.0f, static_cast<int>(exponent) - 7);
}

std::vector<float> all_e4m3() {
  std::vector<float> values(1 << 8);
  for (unsigned bits = 0; bits < values.size(); ++bits) values[bits] = widen_e4m3(bits);
  return values;
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

// A format of 8 bits: its fraction's bits, its exponent's bias, its largest value and that one's code.
struct Narrow {
  unsigned fraction_bits, bias;
  float largest;
  unsigned code;
};
constexpr Narrow E4M3 = {3, 7, 448.0f, 0x7e};
constexpr Narrow E5M2 = {2, 15, 57344.0f, 0x7b};

unsigned short round_narrow(const Narrow& to, float x) {
  if (x != x) return 0x7f;
  const unsigned sign = bits_of(x) >> 24 & 0x80;
  const float size = std::fabs(x);
  if (size >= to.largest) return static_cast<unsigned short>(sign | to.code);
  const int least = 1 - static_cast<int>(to.bias);  // exponent of the least normal value
  if (size < std::ldexp(1.0f, least)) {
    const float unit = std::ldexp(1.0f, least - static_cast<int>(to.fraction_bits));
    return static_cast<unsigned short>(sign | static_cast<unsigned>(std::nearbyint(size / unit)));
  }
  const unsigned shift = 23 - to.fraction_bits;
  const unsigned bits = bits_of(size);
  const unsigned rounded = bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1);
  const unsigned code = (rounded >> shift) - ((127 - to.bias) << to.fraction_bits);
  return static_cast<unsigned short>(sign | code);
}

}  // namespace

float widen(Format format, unsigned short bits) {
  if (format == Format::bf16) return from_bits<float>(static_cast<unsigned>(bits) << 16);
  if (format == Format::e4m3) {
    static const std::vector<float> narrow = all_e4m3();
    return narrow[bits];
  }
  if (format == Format::e5m2) bits = static_cast<unsigned short>(bits << 8);
  static const std::vector<float> values = all_fp16();
  return values[bits];
}

unsigned short round_to(Format format, float x) {
  switch (format) {
    case Format::bf16:
      return round_bf16(x);
    case Format::fp16:
      return round_fp16(x);
    case Format::e4m3:
      return round_narrow(E4M3, x);
    default:
      return round_narrow(E5M2, x);
  }
}

}  // namespace simulator
