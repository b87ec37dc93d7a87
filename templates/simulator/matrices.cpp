// Matrices that a warp holds together: loaded, stored, transposed and multiplied.
#include <algorithm>

#include "machine.h"
#include "meet.h"
#include "memory.h"
#include "primitives.h"

namespace simulator {

namespace {

// Counts how many rows of an 8 x 16 byte matrix share banks with another.
unsigned conflicts(const unsigned (&addresses)[8]) {
  unsigned count = 0;
  for (unsigned i = 0; i < 8; ++i) {
    for (unsigned j = 0; j < i; ++j) {
      if (addresses[i] != addresses[j] && (addresses[i] ^ addresses[j]) / 16 % 8 == 0) {
        ++count;
        break;
      }
    }
  }
  return count;
}

}  // namespace

namespace {

// The rows that lanes point at, 16 bytes each: lane 8 i + r at row r of matrix i.
struct Rows {
  unsigned address;
  unsigned* matrices;
};

// Calls `visit(lane, i, first, second)` for the two elements of matrix i that each lane holds.
template <typename Lane, typename Visit>
void by_pairs(const Lane& lane, unsigned num, bool transposed, const Visit& visit) {
  unsigned count = 0;
  for (unsigned i = 0; i < num; ++i) {
    unsigned addresses[8];
    for (unsigned row = 0; row < 8; ++row) addresses[row] = lane(8 * i + row).address;
    count += conflicts(addresses);
    for (unsigned l = 0; l < WARP; ++l) {
      const unsigned row = l / 4;
      const unsigned column = l % 4 * 2;
      unsigned char* first = shared_memory();
      unsigned char* second = shared_memory();
      if (transposed) {
        first += addresses[column] + 2 * row;
        second += addresses[column + 1] + 2 * row;
      } else {
        first += addresses[row] + 2 * column;
        second += addresses[row] + 2 * column + 2;
      }
      visit(l, i, first, second);
    }
  }
  block->launch->figures.bank_conflicts += count;
}

}  // namespace

void load_matrices(unsigned* matrices, unsigned num, unsigned address, bool transposed,
                   const char* primitive, Place at) {
  Rows mine{address, matrices};
  const Call call = called(primitive, at);
  // Each lane answers for the row that it points at.
  if (lane_of(*self) < 8 * num) {
    require_shared(call, address, 16, 16);
    refuse_state(call, address, 16, IN_FLIGHT | MBARRIER);
    touch_shared(call, address, 16, READ);
  }
  meet(call, ALL, mine, [&](const auto& lane) {
    by_pairs(lane, num, transposed, [&](unsigned l, unsigned i, const auto* first, auto* second) {
      lane(l).matrices[i] = static_cast<unsigned>(first[0] | first[1] << 8 | second[0] << 16) |
                            static_cast<unsigned>(second[1]) << 24;
    });
  });
}

void store_matrices(unsigned address, const unsigned* matrices, unsigned num, bool transposed,
                    const char* primitive, Place at) {
  unsigned copies[4];
  std::copy_n(matrices, num, copies);
  Rows mine{address, copies};
  const Call call = called(primitive, at);
  if (lane_of(*self) < 8 * num) {
    require_shared(call, address, 16, 16);
    refuse_state(call, address, 16, IN_FLIGHT | IN_USE | MBARRIER);
    set_state(address, 16, WRITTEN, 0);
    touch_shared(call, address, 16, WRITE);
  }
  meet(call, ALL, mine, [&](const auto& lane) {
    by_pairs(lane, num, transposed, [&](unsigned l, unsigned i, auto* first, auto* second) {
      const unsigned pair = lane(l).matrices[i];
      std::memcpy(first, &pair, 2);
      std::memcpy(second, reinterpret_cast<const char*>(&pair) + 2, 2);
    });
  });
}

unsigned transpose(unsigned matrix, Place at) {
  struct {
    unsigned matrix, result;
  } mine{matrix, 0};
  meet(called("transpose_matrix", at), ALL, mine, [](const auto& lane) {
    unsigned elements[8][8];
    for (unsigned l = 0; l < WARP; ++l) {
      elements[l / 4][l % 4 * 2] = lane(l).matrix & 0xffff;
      elements[l / 4][l % 4 * 2 + 1] = lane(l).matrix >> 16;
    }
    for (unsigned l = 0; l < WARP; ++l) {
      lane(l).result = elements[l % 4 * 2][l / 4] | elements[l % 4 * 2 + 1][l / 4] << 16;
    }
  });
  return mine.result;
}

void multiply(Format format, float* d, const unsigned* a, unsigned b0, unsigned b1, Place at) {
  struct {
    float* d;
    const unsigned* a;
    unsigned b[2];
  } mine{d, a, {b0, b1}};
  meet(called("mma", at), ALL, mine, [&](const auto& lane) {
    float left[16][16];
    float right[16][8];
    const auto low = [&](unsigned pair) { return widen(format, pair & 0xffff); };
    const auto high = [&](unsigned pair) { return widen(format, pair >> 16); };
    for (unsigned l = 0; l < WARP; ++l) {
      const unsigned row = l / 4;
      const unsigned pair = l % 4 * 2;
      for (unsigned i = 0; i < 4; ++i) {
        left[row + i % 2 * 8][pair + i / 2 * 8] = low(lane(l).a[i]);
        left[row + i % 2 * 8][pair + i / 2 * 8 + 1] = high(lane(l).a[i]);
      }
      for (unsigned i = 0; i < 2; ++i) {
        right[pair + i * 8][row] = low(lane(l).b[i]);
        right[pair + i * 8 + 1][row] = high(lane(l).b[i]);
      }
    }
    for (unsigned row = 0; row < 16; ++row) {
      float sums[8] = {};
      for (unsigned k = 0; k < 16; ++k) {
        for (unsigned column = 0; column < 8; ++column) {
          sums[column] += left[row][k] * right[k][column];
        }
      }
      for (unsigned column = 0; column < 8; ++column) {
        lane(row % 8 * 4 + column / 2).d[row / 8 * 2 + column % 2] += sums[column];
      }
    }
  });
}

}  // namespace simulator
