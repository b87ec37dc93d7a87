// Four warps that multiply together, and what they have not waited for.
#pragma once

#include "meet.h"
#include "primitives.h"

namespace simulator {

// A part of the result, as the lanes of one warp hold it, while products write to it.
struct Accumulator {
  float* registers[WARP];
  unsigned size;              // registers of a lane
  std::vector<float> values;  // lane by lane
  std::uint64_t last;         // the product that writes to it last
};

// An operand in shared memory: its units of 16 bytes, row by row of 8 or 16 elements.
struct Operand {
  std::vector<unsigned> units;
  unsigned rows;     // of A, or columns of B
  bool transposed;   // a unit holds elements of different rows, not of one
};

constexpr unsigned ROWS = 64;   // of A
constexpr unsigned DEPTH = 32;  // of K, at most

inline bool is_wide(Format format) { return format == Format::bf16 || format == Format::fp16; }

// The units of 16 bytes of [rows, 32 bytes of K], where a descriptor has them.
Operand operand_of(const Call& call, const char* name, std::uint64_t descriptor, unsigned rows,
                   bool mn_major);

// An engine reads it from now on. What was written must be fenced, and known to every thread of the
// warpgroup; the rest is NaN.
void begin_reading(const Call& call, const Operand& operand, unsigned engine);

// values[row][k] of an operand in shared memory; of A in registers, where each warp has 16 rows as
// mma takes them.
void read_operand(const Operand& operand, Format format, float (*values)[DEPTH]);
void read_registers(const std::vector<unsigned>& registers, Format format, float (*values)[DEPTH]);

struct Product {
  std::uint64_t number;
  Call call;
  Format format;
  unsigned size;  // N
  bool accumulate;
  bool from_registers;
  Operand a, b;
  std::vector<unsigned> a_registers;  // 4 a thread
  std::shared_ptr<Accumulator> parts[4];
  std::uint32_t tick;
};

struct Warpgroup {
  struct Member {  // a warp of it
    bool fenced = false;
    std::uint64_t issued = 0;          // the last product, by its number
    std::deque<std::uint64_t> groups;  // the last product of each
    std::uint64_t waited = 0;          // the last that was waited for
    std::vector<std::shared_ptr<Accumulator>> parts;
  };
  unsigned index = 0;
  std::uint64_t issued = 0;
  Call last;  // of them
  std::deque<Product> unread;  // operands may still be read
  std::deque<Product> held;    // read, and not waited for
  Member members[4];
  // Where its threads meet.
  unsigned arrived = 0;
  Call call;
  void* slot[WARPGROUP] = {};
};

Warpgroup& warpgroup_of_self(const Call& call);

// All threads of the warpgroup meet, as those of a warp do.
template <typename Operands, typename Complete>
void meet_warpgroup(const Call& call, Operands& mine, const Complete& complete) {
  Warpgroup& group = warpgroup_of_self(call);
  const unsigned first = group.index * WARPGROUP;
  for (unsigned i = 0; i < WARPGROUP; ++i) {
    if (block->threads[first + i].done) fail(call, "thread %u has returned", first + i);
  }
  if (group.arrived == 0) {
    group.call = call;
  } else if (std::strcmp(group.call.primitive, call.primitive) != 0 ||
             group.call.line != call.line) {
    fail(call, "thread %u is here, while others of its warpgroup are at %s, line %u", self->index,
         group.call.primitive, group.call.line);
  }
  group.slot[self->index - first] = &mine;
  if (++group.arrived < WARPGROUP) {
    wait_at(call);
    return;
  }
  complete(group, [&](unsigned i) -> Operands& { return *static_cast<Operands*>(group.slot[i]); });
  group.arrived = 0;
  for (unsigned i = WARPGROUP; i-- > 0;) {
    if (first + i != self->index) wake(block->threads[first + i]);
  }
}

}  // namespace simulator
