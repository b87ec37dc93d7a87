// Where threads wait for each other: barriers of a block, of a warp, and with a number.
#include <algorithm>

#include "machine.h"
#include "meet.h"
#include "memory.h"
#include "primitives.h"

namespace simulator {

namespace {

// The last to arrive tells all what all know, and wakes those who wait.
void complete(Barrier& barrier) {
  barrier.was_any = barrier.any;
  barrier.was_all = barrier.all;
  barrier.was_count = barrier.count;
  barrier.arrived = 0;
  block->spins = 0;
  std::shuffle(barrier.waiting.begin(), barrier.waiting.end(), block->random);
  for (Thread* thread : barrier.waiting) {
    // Whoever waits has told the barrier all that it knows.
    std::copy_n(barrier.clocks.data(), block->width, thread->clocks);
    thread->reports = barrier.reports;
    ++thread->clocks[thread->index];
    if (thread != self) wake(*thread);
  }
  barrier.waiting.clear();
}

// Counts this thread at a barrier of `expected` threads. Whether it was the last.
bool arrive(const Call& call, Barrier& barrier, unsigned expected, int predicate) {
  if (barrier.arrived == 0) {
    barrier.call = call;
    barrier.expected = expected;
    std::fill(barrier.clocks.begin(), barrier.clocks.end(), 0);
    barrier.reports.clear();
    barrier.any = 0;
    barrier.all = 1;
    barrier.count = 0;
  } else if (barrier.expected != expected) {
    fail(call, "a barrier of %u threads, and of %u in line %u", expected, barrier.expected,
         barrier.call.line);
  }
  join(barrier.clocks.data(), self->clocks, block->width);
  join(barrier.reports, self->reports);
  barrier.any |= predicate != 0;
  barrier.all &= predicate != 0;
  barrier.count += predicate != 0;
  return ++barrier.arrived == expected;
}

void wait_for(const Call& call, Barrier& barrier, bool is_last) {
  barrier.waiting.push_back(self);
  if (is_last) {
    complete(barrier);
  } else {
    wait_at(call);
  }
}

Barrier& all_threads(const char* primitive, int predicate, Place at) {
  const Call call = called(primitive, at);
  if (block->alive != block->threads.size()) {
    fail(call, "%zu threads of the block have returned", block->threads.size() - block->alive);
  }
  Barrier& barrier = block->barriers[0];
  if (barrier.arrived && barrier.call.line != call.line) {
    fail(call, "a barrier of all threads, while others are at that of line %u", barrier.call.line);
  }
  wait_for(call, barrier, arrive(call, barrier, block->alive, predicate));
  return barrier;
}

// A barrier with a number. Whole warps count, so that their lanes must be here together.
Barrier& numbered(const Call& call, unsigned id, unsigned num_threads) {
  if (id >= MAX_BARRIERS) fail(call, "barrier %u; a block has 0 to %u", id, MAX_BARRIERS - 1);
  if (num_threads == 0 || num_threads % WARP || num_threads > block->threads.size()) {
    fail(call, "a barrier of %u threads; whole warps are allowed, and %zu threads are there",
         num_threads, block->threads.size());
  }
  struct {
    unsigned id;
  } mine{id};
  meet(call, ALL, mine, [&](const auto& lane) {
    for (unsigned i = 0; i < WARP; ++i) {
      if (lane(i).id != id) fail(call, "lanes of a warp name barriers %u and %u", lane(i).id, id);
    }
  });
  return block->barriers[id];
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

void named_barrier(unsigned id, unsigned num_threads, bool waits, Place at) {
  const Call call = called(waits ? "named_barrier_sync" : "named_barrier_arrive", at);
  Barrier& barrier = numbered(call, id, num_threads);
  if (barrier.arrived == 0) barrier.has_arrived.assign(block->threads.size(), false);
  if (barrier.has_arrived[self->index]) {
    fail(call, "thread %u arrives twice before %u threads have arrived", self->index, num_threads);
  }
  barrier.has_arrived[self->index] = true;
  const bool is_last = arrive(call, barrier, num_threads, 0);
  if (waits) {
    wait_for(call, barrier, is_last);
  } else {
    ++self->clocks[self->index];
    if (is_last) complete(barrier);
  }
}

void warp_barrier(unsigned mask, Place at) {
  Thread* mine = self;
  meet(called("__syncwarp", at), mask, *mine, [&](const auto& lane) {
    const unsigned count = block->width;
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

}  // namespace simulator
