// A tensor map as the simulator keeps it in the 128 bytes that a driver would fill.
#pragma once

#include <cstdint>

namespace simulator {

constexpr unsigned MAX_RANK = 5;

struct TensorMapFields {
  static constexpr std::uint64_t MAGIC = 0x70616765'6d617001;
  std::uint64_t magic;
  unsigned char* base;
  std::uint64_t strides[MAX_RANK];   // bytes; the first is an element
  std::uint32_t last[MAX_RANK];      // sizes less one
  std::uint16_t box[MAX_RANK];       // elements
  std::uint8_t rank, element_bytes, span;  // span: bytes that a swizzle permutes, or 0
};
static_assert(sizeof(TensorMapFields) <= 128);

// Where a swizzle over `span` bytes puts what lies at an address without it: units of 16 bytes trade
// places by the number of their row of 128 bytes.
inline unsigned swizzle(unsigned address, unsigned span) {
  return span ? address ^ (address >> 3 & (span - 16)) : address;
}

}  // namespace simulator

// What the host passes to be encoded.
struct PagegenTensorMap {
  std::uint64_t base;
  std::uint64_t sizes[simulator::MAX_RANK];
  std::uint64_t strides[simulator::MAX_RANK - 1];  // bytes, from the second dimension on
  std::uint32_t box[simulator::MAX_RANK];
  std::uint32_t element_strides[simulator::MAX_RANK];
  std::uint32_t rank, element_bytes;
  std::uint32_t swizzle;  // the driver's number: 0 none, then 32, 64 and 128 bytes
};
