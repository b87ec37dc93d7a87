// Products of warpgroups: issued, carried out at any time until they are waited for, in order.
#include <algorithm>

#include "engines.h"
#include "hopper.h"
#include "memory.h"
#include "warpgroup.h"

namespace simulator {

namespace {

void carry_out(const Product& product) {
  static thread_local float left[ROWS][DEPTH];
  static thread_local float right[256][DEPTH];
  static thread_local float columns[DEPTH][256];
  if (product.from_registers) {
    read_registers(product.a_registers, product.format, left);
  } else {
    read_operand(product.a, product.format, left);
  }
  read_operand(product.b, product.format, right);
  const unsigned depth = is_wide(product.format) ? 16 : 32;
  for (unsigned k = 0; k < depth; ++k) {
    for (unsigned column = 0; column < product.size; ++column) columns[k][column] = right[column][k];
  }
  for (unsigned row = 0; row < ROWS; ++row) {
    float sums[256] = {};
    for (unsigned k = 0; k < depth; ++k) {
      const float factor = left[row][k];
      for (unsigned i = 0; i < product.size; ++i) sums[i] += factor * columns[k][i];
    }
    Accumulator& part = *product.parts[row / 16];
    for (unsigned column = 0; column < product.size; ++column) {
      const unsigned lane = row % 8 * 4 + column % 8 / 2;
      const unsigned i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
      float& value = part.values[lane * part.size + i];
      value = product.accumulate ? value + sums[column] : sums[column];
    }
  }
}

// Reads operands in order, up to a product.
void carry_out_until(Warpgroup& group, std::uint64_t number) {
  while (!group.unread.empty() && group.unread.front().number <= number) {
    carry_out(group.unread.front());
    group.held.push_back(std::move(group.unread.front()));
    group.unread.pop_front();
  }
}

void finish_until(Warpgroup& group, std::uint64_t number) {
  carry_out_until(group, number);
  while (!group.held.empty() && group.held.front().number <= number) {
    for (const Operand* operand : {&group.held.front().a, &group.held.front().b}) {
      for (const unsigned unit : operand->units) let_go(unit, 16);
    }
    group.held.pop_front();
  }
}

constexpr unsigned POISON = 0xffffffff;  // NaN

// The part of the result in these registers: in flight already, or taken from them now.
std::shared_ptr<Accumulator> part_of(const Call& call, Warpgroup::Member& member,
                                     float* const* registers, unsigned size) {
  for (const auto& part : member.parts) {
    if (part->registers[0] != registers[0]) continue;
    if (part->size != size) {
      fail(call, "these registers are the result of a product of another shape in flight");
    }
    return part;
  }
  auto part = std::make_shared<Accumulator>();
  part->size = size;
  for (unsigned lane = 0; lane < WARP; ++lane) {
    part->registers[lane] = registers[lane];
    part->values.insert(part->values.end(), registers[lane], registers[lane] + size);
    std::fill_n(registers[lane], size, from_bits<float>(POISON));
  }
  member.parts.push_back(part);
  return part;
}

// Gives registers their results, up to a product.
void give_back(const Call& call, Warpgroup::Member& member, std::uint64_t number) {
  std::erase_if(member.parts, [&](const std::shared_ptr<Accumulator>& part) {
    if (part->last > number) return false;
    for (unsigned i = 0; i < WARP * part->size; ++i) {
      float& place = part->registers[i / part->size][i % part->size];
      if (bits_of(place) != POISON) {
        fail(call, "register %u of a result was written before the wait", i % part->size);
      }
      place = part->values[i];
    }
    return true;
  });
}

struct Issue {
  float* d;
  std::uint64_t a, b;
  const unsigned* registers;  // of A; null: in shared memory
  bool accumulate;
  Thread* thread;
};

}  // namespace

void issue_product(Format format, float* d, unsigned size, const unsigned* registers,
                   std::uint64_t a, std::uint64_t b, bool a_mn, bool b_mn, bool accumulate,
                   Place at) {
  const Call call = called(registers ? "wgmma_rs" : "wgmma_ss", at);
  Issue mine{d, a, b, registers, accumulate, self};
  meet_warpgroup(call, mine, [&](Warpgroup& group, const auto& thread) {
    const unsigned engine = product_engine(group.index % PRODUCT_ENGINES);
    Product product{};
    product.number = ++group.issued;
    group.last = call;
    product.call = call;
    product.format = format;
    product.size = size;
    product.accumulate = accumulate;
    product.from_registers = registers != nullptr;
    product.tick = ++block->ticks[engine];
    std::vector<std::uint32_t> known(self->clocks, self->clocks + block->width);
    for (unsigned i = 0; i < WARPGROUP; ++i) {
      const Issue& each = thread(i);
      if (each.a != a || each.b != b || each.accumulate != accumulate) {
        fail(call, "threads %u and %u give different operands", each.thread->index, self->index);
      }
      for (unsigned j = 0; j < block->width; ++j) {
        known[j] = std::min(known[j], each.thread->clocks[j]);
      }
      if (registers) {
        product.a_registers.insert(product.a_registers.end(), each.registers, each.registers + 4);
      }
    }
    std::uint32_t* const own = self->clocks;
    self->clocks = known.data();  // what all of them know
    product.b = operand_of(call, "B", b, size, b_mn);
    if (!registers) product.a = operand_of(call, "A", a, ROWS, a_mn);
    begin_reading(call, product.a, engine);
    begin_reading(call, product.b, engine);
    self->clocks = own;
    for (unsigned warp = 0; warp < 4; ++warp) {
      Warpgroup::Member& member = group.members[warp];
      if (!member.fenced) fail(call, "no wgmma_fence since the start or the last wgmma_wait");
      float* places[WARP];
      for (unsigned lane = 0; lane < WARP; ++lane) places[lane] = thread(warp * WARP + lane).d;
      product.parts[warp] = part_of(call, member, places, size / 2);
      product.parts[warp]->last = product.number;
      member.issued = product.number;
    }
    group.unread.push_back(std::move(product));
    const std::uint64_t number = group.issued;
    if (chance()) {
      carry_out_until(group, number);
    } else if (chance()) {
      const auto shared = block->warpgroups[group.index];
      block->work.push_back(
          {false, false, call, [shared, number] { carry_out_until(*shared, number); }});
    }
  });
}

void fence_products(Place at) {
  const Call call = called("wgmma_fence", at);
  Warpgroup& group = warpgroup_of_self(call);
  Thread* mine = self;
  meet(call, ALL, *mine, [&](const auto&) {
    group.members[self->index % WARPGROUP / WARP].fenced = true;
  });
}

void close_products(Place at) {
  const Call call = called("wgmma_commit", at);
  Warpgroup& group = warpgroup_of_self(call);
  Thread* mine = self;
  meet(call, ALL, *mine, [&](const auto&) {
    Warpgroup::Member& member = group.members[self->index % WARPGROUP / WARP];
    member.groups.push_back(member.issued);
  });
}

void wait_for_products(unsigned pending, Place at) {
  const Call call = called("wgmma_wait", at);
  Warpgroup& group = warpgroup_of_self(call);
  Thread* mine = self;
  meet(call, ALL, *mine, [&](const auto& lane) {
    Warpgroup::Member& member = group.members[self->index % WARPGROUP / WARP];
    while (member.groups.size() > pending) {
      member.waited = std::max(member.waited, member.groups.front());
      member.groups.pop_front();
    }
    member.fenced = false;
    finish_until(group, member.waited);
    give_back(call, member, member.waited);
    // What comes after the wait comes after what products up to there have read.
    const unsigned engine = product_engine(group.index % PRODUCT_ENGINES);
    std::uint32_t tick = block->ticks[engine];
    for (const auto* products : {&group.unread, &group.held}) {
      for (const Product& product : *products) tick = std::min(tick, product.tick - 1);
    }
    for (unsigned i = 0; i < WARP; ++i) {
      std::uint32_t& known = lane(i).clocks[block->threads.size() + engine];
      known = std::max(known, tick);
    }
  });
}

}  // namespace simulator
