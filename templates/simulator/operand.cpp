// Operands of products: where a descriptor has them in shared memory, and their numbers.
#include "engines.h"
#include "memory.h"
#include "tensor_map.h"
#include "warpgroup.h"

namespace simulator {

Operand operand_of(const Call& call, const char* name, std::uint64_t descriptor, unsigned rows,
                   bool mn_major) {
  const auto field = [&](unsigned bit) {
    return static_cast<unsigned>(descriptor >> bit & 0x3fff) * 16;
  };
  constexpr unsigned SPANS[] = {0, 128, 64, 32};
  const unsigned span = SPANS[descriptor >> 62];
  const unsigned start = field(0);
  const unsigned leading = field(16);
  const unsigned stride = field(32);
  if (descriptor >> 49 & 7) fail(call, "%s: a base offset, which is not simulated", name);
  if (descriptor & 0x3ff1'c000'c000'c000) {
    fail(call, "%s: descriptor %#llx has bits that mean nothing", name,
         static_cast<unsigned long long>(descriptor));
  }
  const unsigned pitch = span ? span : 16;
  Operand operand{{}, rows, mn_major};
  const auto add = [&](unsigned address) { operand.units.push_back(swizzle(address, span)); };
  if (!mn_major) {
    // Rows in groups of 8, a pitch apart; two units of K.
    const unsigned next = span ? 16 : leading;
    for (unsigned row = 0; row < rows; ++row) {
      for (unsigned k = 0; k < 2; ++k) {
        add(start + row % 8 * pitch + row / 8 * stride + k * next);
      }
    }
    return operand;
  }
  // Units of 8 rows, as many as a pitch holds beside each other; 16 of K, in groups of 8.
  const unsigned beside = pitch / 16;
  const unsigned next_rows = span ? leading : stride;
  const unsigned next_k = span ? stride : leading;
  for (unsigned row = 0; row < rows / 8; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      add(start + row % beside * 16 + row / beside * next_rows + k % 8 * pitch + k / 8 * next_k);
    }
  }
  return operand;
}

void begin_reading(const Call& call, const Operand& operand, unsigned engine) {
  for (const unsigned unit : operand.units) {
    require_shared(call, unit, 16, 16);
    refuse_state(call, unit, 16, IN_FLIGHT | MBARRIER);
    refuse_unfenced(call, unit, 16);
    touch_shared_as(engine, call, unit, 16, READ);
    hold(unit, 16);
  }
}

void read_operand(const Operand& operand, Format format, float (*values)[DEPTH]) {
  const unsigned size = is_wide(format) ? 2 : 1;
  const unsigned num = 16 / size;
  for (unsigned i = 0; i < operand.units.size(); ++i) {
    const unsigned char* unit = shared_memory() + operand.units[i];
    for (unsigned j = 0; j < num; ++j) {
      unsigned short bits = 0;
      std::memcpy(&bits, unit + j * size, size);
      const float value = widen(format, bits);
      if (operand.transposed) {
        values[i / 16 * num + j][i % 16] = value;
      } else {
        values[i / 2][i % 2 * num + j] = value;
      }
    }
  }
}

void read_registers(const std::vector<unsigned>& registers, Format format, float (*values)[DEPTH]) {
  const unsigned num = is_wide(format) ? 2 : 4;  // elements of a register
  for (unsigned thread = 0; thread < WARPGROUP; ++thread) {
    const unsigned lane = thread % WARP;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = thread / WARP * 16 + lane / 4 + i % 2 * 8;
      const unsigned k = lane % 4 * num + i / 2 * 4 * num;
      for (unsigned j = 0; j < num; ++j) {
        const unsigned bits = registers[thread * 4 + i] >> (j * 32 / num);
        values[row][k + j] =
            widen(format, static_cast<unsigned short>(num == 2 ? bits & 0xffff : bits & 0xff));
      }
    }
  }
}

}  // namespace simulator
