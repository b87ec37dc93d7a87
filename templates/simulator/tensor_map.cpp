// Encodes tensor maps, and refuses what a driver refuses.
#include "tensor_map.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace {

using simulator::MAX_RANK;

constexpr std::uint64_t MAX_STRIDE = std::uint64_t{1} << 40;
constexpr std::uint64_t MAX_SIZE = std::uint64_t{1} << 32;

// Why a map is refused, in words.
class Refusal {
 public:
  Refusal(char* report, unsigned num_bytes) : report_(report), num_bytes_(num_bytes) {}

  void unless(bool allowed, const char* format, ...) __attribute__((format(printf, 3, 4))) {
    if (allowed || refused_) return;
    refused_ = true;
    va_list values;
    va_start(values, format);
    std::vsnprintf(report_, num_bytes_, format, values);
    va_end(values);
  }
  bool refused() const { return refused_; }

 private:
  char* report_;
  unsigned num_bytes_;
  bool refused_ = false;
};

void check(const PagegenTensorMap& given, Refusal& refusal) {
  const auto u = [](std::uint64_t x) { return static_cast<unsigned long long>(x); };
  refusal.unless(given.rank >= 1 && given.rank <= MAX_RANK, "rank %u; 1 to 5", given.rank);
  if (refusal.refused()) return;
  refusal.unless(given.base && given.base % 16 == 0,
                 "the tensor's address %#llx is not a multiple of 16", u(given.base));
  const unsigned size = given.element_bytes;
  refusal.unless(size == 1 || size == 2 || size == 4 || size == 8, "elements of %u bytes", size);
  refusal.unless(given.swizzle <= 3, "swizzle %u; 0 to 3", given.swizzle);
  for (unsigned i = 0; i < given.rank; ++i) {
    refusal.unless(given.sizes[i] >= 1 && given.sizes[i] <= MAX_SIZE,
                   "size %llu of dimension %u; 1 to 2^32", u(given.sizes[i]), i);
    refusal.unless(given.box[i] >= 1 && given.box[i] <= 256,
                   "a box of %u elements in dimension %u; 1 to 256", given.box[i], i);
    refusal.unless(given.element_strides[i] == 1,
                   "element stride %u of dimension %u; only 1 is simulated",
                   given.element_strides[i], i);
  }
  for (unsigned i = 0; i + 1 < given.rank; ++i) {
    refusal.unless(given.strides[i] % 16 == 0 && given.strides[i] < MAX_STRIDE,
                   "stride %llu of dimension %u; a multiple of 16 bytes below 2^40",
                   u(given.strides[i]), i + 1);
  }
  const unsigned inner = given.box[0] * size;
  refusal.unless(inner % 16 == 0, "a box of %u bytes in dimension 0; a multiple of 16", inner);
  if (given.swizzle == 0) return;
  const unsigned span = 16u << given.swizzle;
  refusal.unless(inner <= span, "a box of %u bytes in dimension 0 is wider than its swizzle, %u",
                 inner, span);
  refusal.unless(inner == span, "a box of %u bytes in dimension 0 leaves a part of its swizzle of %u"
                 " bytes empty, which is not simulated", inner, span);
}

}  // namespace

// Fills 128 bytes at `map`. Returns 1, and why in `report`, where the map is refused.
extern "C" __attribute__((visibility("default"))) int pagegen_encode_tensor_map(
    const PagegenTensorMap* given, void* map, char* report, std::uint32_t report_bytes) {
  Refusal refusal(report, report_bytes);
  check(*given, refusal);
  if (refusal.refused()) return 1;
  simulator::TensorMapFields fields = {};
  fields.magic = simulator::TensorMapFields::MAGIC;
  fields.base = reinterpret_cast<unsigned char*>(given->base);
  fields.rank = static_cast<std::uint8_t>(given->rank);
  fields.element_bytes = static_cast<std::uint8_t>(given->element_bytes);
  fields.span = static_cast<std::uint8_t>(given->swizzle ? 16u << given->swizzle : 0);
  for (unsigned i = 0; i < given->rank; ++i) {
    fields.last[i] = static_cast<std::uint32_t>(given->sizes[i] - 1);
    fields.box[i] = static_cast<std::uint16_t>(given->box[i]);
    fields.strides[i] = i ? given->strides[i - 1] : given->element_bytes;
  }
  std::memset(map, 0, 128);
  std::memcpy(map, &fields, sizeof fields);
  return 0;
}
