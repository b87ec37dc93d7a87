// What the primitives do: barriers, shuffles, votes, copies, and products of matrices.
#include "primitives.h"

#include <algorithm>

#include "machine.h"
#include "memory.h"

namespace simulator {

namespace {

unsigned lane_of(const Thread& thread) { return thread.index % WARP; }

// All lanes of `mask` meet. The last to arrive calls `complete` with a function from lanes to their
// operands, and all go on.
template <typename Operands, typename Complete>
void meet(const Call& call, unsigned mask, Operands& mine, const Complete& complete) {
  Meeting& meeting = block->meetings[self->index / WARP];
  const unsigned lane = lane_of(*self);
  const unsigned first = self->index / WARP * WARP;
  if (!(mask >> lane & 1)) fail(call, "lane %u is not in its own mask %#x", lane, mask);
  for (unsigned other = 0; other < WARP; ++other) {
    if ((mask >> other & 1) && block->threads[first + other].done) {
      fail(call, "lane %u of the mask has returned", other);
    }
  }
  if (meeting.arrived == 0) {
    meeting.call = call;
    meeting.mask = mask;
  } else if (std::strcmp(meeting.call.primitive, call.primitive) != 0 || meeting.mask != mask ||
             meeting.call.line != call.line) {
    fail(call, "lane %u is here, while others of its warp are at %s, line %u", lane,
         meeting.call.primitive, meeting.call.line);
  }
  meeting.slot[lane] = &mine;
  meeting.arrived |= 1u << lane;
  if (meeting.arrived != mask) {
    wait_at(call);
    return;
  }
  complete([&](unsigned i) -> Operands& { return *static_cast<Operands*>(meeting.slot[i]); });
  meeting.arrived = 0;
  for (unsigned other = WARP; other-- > 0;) {
    if (other != lane && (mask >> other & 1)) wake(block->threads[first + other]);
  }
}

constexpr unsigned ALL = 0xffffffff;

// Arrives at a barrier of `expected` threads, and waits until all have.
Barrier& arrive_and_wait(const Call& call, unsigned id, unsigned expected, int predicate) {
  Barrier& barrier = block->barriers[id];
  const unsigned count = static_cast<unsigned>(block->threads.size());
  if (barrier.arrived == 0) {
    barrier.call = call;
    std::fill(barrier.clocks.begin(), barrier.clocks.end(), 0);
    barrier.reports.clear();
    barrier.any = 0;
    barrier.all = 1;
    barrier.count = 0;
  } else if (barrier.call.line != call.line) {
    fail(call, "a barrier of all threads, while others are at that of line %u", barrier.call.line);
  }
  join(barrier.clocks.data(), self->clocks, count);
  join(barrier.reports, self->reports);
  barrier.any |= predicate != 0;
  barrier.all &= predicate != 0;
  barrier.count += predicate != 0;
  barrier.waiting.push_back(self);
  if (++barrier.arrived < expected) {
    wait_at(call);
    return barrier;
  }
  barrier.was_any = barrier.any;
  barrier.was_all = barrier.all;
  barrier.was_count = barrier.count;
  barrier.arrived = 0;
  std::shuffle(barrier.waiting.begin(), barrier.waiting.end(), block->random);
  for (Thread* thread : barrier.waiting) {
    std::copy_n(barrier.clocks.data(), count, thread->clocks);
    thread->reports = barrier.reports;
    ++thread->clocks[thread->index];
    if (thread != self) wake(*thread);
  }
  barrier.waiting.clear();
  return barrier;
}

Barrier& all_threads(const char* primitive, int predicate, Place at) {
  const Call call = called(primitive, at);
  if (block->alive != block->threads.size()) {
    fail(call, "%zu threads of the block have returned", block->threads.size() - block->alive);
  }
  return arrive_and_wait(call, 0, block->alive, predicate);
}

}  // namespace

void block_barrier(Place at) { all_threads("__syncthreads", 0, at); }

int block_barrier_or(int predicate, Place at) {
  return all_threads("__syncthreads_or", predicate, at).was_any;
}

int block_barrier_and(int predicate, Place at) {
  return all_threads("__syncthreads_and", predicate, at).was_all;
}

int block_barrier_count(int predicate, Place at) {
  return all_threads("__syncthreads_count", predicate, at).was_count;
}

void warp_barrier(unsigned mask, Place at) {
  Thread* mine = self;
  meet(called("__syncwarp", at), mask, *mine, [&](const auto& lane) {
    const unsigned count = static_cast<unsigned>(block->threads.size());
    static thread_local std::vector<std::uint32_t> clocks;
    clocks.assign(count, 0);
    Reports reports;
    for (unsigned i = 0; i < WARP; ++i) {
      if (!(mask >> i & 1)) continue;
      join(clocks.data(), lane(i).clocks, count);
      join(reports, lane(i).reports);
    }
    for (unsigned i = 0; i < WARP; ++i) {
      if (!(mask >> i & 1)) continue;
      std::copy_n(clocks.data(), count, lane(i).clocks);
      lane(i).reports = reports;
      ++lane(i).clocks[lane(i).index];
    }
  });
}

unsigned shuffle(unsigned mask, unsigned bits, unsigned from_lane, Place at) {
  struct {
    unsigned bits, from, result;
  } mine{bits, from_lane, 0};
  const Call call = called("__shfl_sync", at);
  meet(call, mask, mine, [&](const auto& lane) {
    for (unsigned i = 0; i < WARP; ++i) {
      if (!(mask >> i & 1)) continue;
      if (!(mask >> lane(i).from & 1)) fail(call, "lane %u is not in the mask", lane(i).from);
      lane(i).result = lane(lane(i).from).bits;
    }
  });
  return mine.result;
}

unsigned ballot(unsigned mask, int predicate, Place at) {
  struct {
    int predicate;
    unsigned result;
  } mine{predicate, 0};
  meet(called("__ballot_sync", at), mask, mine, [&](const auto& lane) {
    unsigned votes = 0;
    for (unsigned i = 0; i < WARP; ++i) {
      if (mask >> i & 1) votes |= static_cast<unsigned>(lane(i).predicate != 0) << i;
    }
    for (unsigned i = 0; i < WARP; ++i) {
      if (mask >> i & 1) lane(i).result = votes;
    }
  });
  return mine.result;
}

int compare_and_swap(int* address, int compare, int value, Place at) {
  touch(called("atomicCAS", at), reinterpret_cast<std::uintptr_t>(address), 4, ATOMIC, true);
  std::lock_guard lock(block->launch->atomic);
  const int before = *address;
  if (before == compare) *address = value;
  return before;
}

int add_atomically(int* address, int value, Place at) {
  touch(called("atomicAdd", at), reinterpret_cast<std::uintptr_t>(address), 4, ATOMIC, true);
  std::lock_guard lock(block->launch->atomic);
  const int before = *address;
  *address += value;
  return before;
}

int add_release_acquire(int* counter, int value, Place at) {
  const auto address = reinterpret_cast<std::uintptr_t>(counter);
  touch(called("arrive", at), address, 4, ATOMIC, true);
  std::lock_guard lock(block->launch->atomic);
  acquire_at(address);
  const int before = *counter;
  *counter += value;
  release_at(address);
  return before;
}

void read_global(const void* address, unsigned num_bytes, const char* primitive, Place at) {
  touch(called(primitive, at), reinterpret_cast<std::uintptr_t>(address), num_bytes, READ, true);
}

void load_vector(void* to, const void* from, Place at) {
  read_global(from, 16, "load_16", at);
  std::memcpy(to, from, 16);
}

void store_vector(void* to, const void* from, Place at) {
  touch(called("store_16", at), reinterpret_cast<std::uintptr_t>(to), 16, WRITE, true);
  std::memcpy(to, from, 16);
}

unsigned offset_in_shared(const void* pointer, Place at) {
  const auto offset = static_cast<const unsigned char*>(pointer) - shared_memory();
  if (offset < 0 || offset >= static_cast<long>(MAX_SHARED)) {
    fail(called("shared_address", at), "a pointer that is not to shared memory");
  }
  return static_cast<unsigned>(offset);
}

void start_copy(unsigned to, const void* from, unsigned num_bytes, bool visible, Place at) {
  const Call call = called(num_bytes == 16 ? "copy_async_16" : "copy_async_4", at);
  require_shared(call, to, num_bytes, num_bytes);
  refuse_state(call, to, num_bytes, IN_FLIGHT | IN_USE);
  const auto source = reinterpret_cast<std::uintptr_t>(from);
  if (visible) touch(call, source, num_bytes, READ, true);
  touch_shared(call, to, num_bytes, WRITE);
  set_state(to, num_bytes, WRITTEN | IN_FLIGHT, 0);
  const Copy copy{to, num_bytes, visible ? from : nullptr, chance(), call};
  unsigned char* target = shared_memory() + to;
  if (!copy.early) {
    std::memset(target, 0xff, num_bytes);
  } else if (visible) {
    std::memcpy(target, from, num_bytes);
  } else {
    std::memset(target, 0, num_bytes);
  }
  self->open.push_back(copy);
}

namespace {

void land(const Copy& copy) {
  unsigned char* target = shared_memory() + copy.to;
  if (!copy.early && copy.from) {
    touch(copy.call, reinterpret_cast<std::uintptr_t>(copy.from), copy.num_bytes, READ, true);
    std::memcpy(target, copy.from, copy.num_bytes);
  } else if (!copy.early) {
    std::memset(target, 0, copy.num_bytes);
  }
  set_state(copy.to, copy.num_bytes, 0, IN_FLIGHT);
  touch_shared(copy.call, copy.to, copy.num_bytes, WRITE);
}

}  // namespace

void close_copies(Place at) {
  called("commit_copies", at);
  self->groups.push_back(std::move(self->open));
  self->open.clear();
}

void finish_copies(unsigned pending, Place at) {
  called("wait_copies", at);
  while (self->groups.size() > pending) {
    for (const Copy& copy : self->groups.front()) land(copy);
    self->groups.pop_front();
  }
}

void finish_all_copies(Place at) {
  finish_copies(0, at);
  called("wait_all_copies", at);
  for (const Copy& copy : self->open) land(copy);
  self->open.clear();
}

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

void load_matrices(unsigned* matrices, unsigned address, bool transposed, Place at) {
  struct Operands {
    unsigned address;
    unsigned* matrices;
    Thread* thread;
  } mine{address, matrices, self};
  const Call call = called(transposed ? "load_matrix_x4_trans" : "load_matrix_x4", at);
  // Each lane answers for the row that it points at.
  require_shared(call, address, 16, 16);
  refuse_state(call, address, 16, IN_FLIGHT);
  touch_shared(call, address, 16, READ);
  meet(call, ALL, mine, [&](const auto& lane) {
    unsigned count = 0;
    for (unsigned i = 0; i < 4; ++i) {
      unsigned short elements[8][8];
      unsigned addresses[8];
      for (unsigned row = 0; row < 8; ++row) {
        addresses[row] = lane(8 * i + row).address;
        std::memcpy(elements[row], shared_memory() + addresses[row], 16);
      }
      count += conflicts(addresses);
      for (unsigned l = 0; l < WARP; ++l) {
        const unsigned row = l / 4;
        const unsigned column = l % 4 * 2;
        const unsigned low = transposed ? elements[column][row] : elements[row][column];
        const unsigned high = transposed ? elements[column + 1][row] : elements[row][column + 1];
        lane(l).matrices[i] = low | high << 16;
      }
    }
    block->launch->figures.bank_conflicts += count;
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
