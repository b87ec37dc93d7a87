// Barriers in shared memory: arrivals and bytes end a phase, and who waits for it learns of both.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "engines.h"
#include "hopper.h"
#include "memory.h"

namespace simulator {

namespace {

constexpr unsigned MAX_COUNT = (1 << 20) - 1;  // of arrivals, and of bytes either way

// Ends the phase. Who waits may learn of it late, when the next is over as well.
void complete(MBarrier& barrier) {
  barrier.completed_clocks.swap(barrier.clocks);
  barrier.completed_reports.swap(barrier.reports);
  std::fill(barrier.clocks.begin(), barrier.clocks.end(), 0);
  barrier.reports.clear();
  for (const Span& span : barrier.landed) set_state(span.begin, span.num_bytes, 0, IN_FLIGHT);
  barrier.landed.clear();
  barrier.pending = barrier.count;
  ++barrier.phase;
  block->spins = 0;
  std::shuffle(barrier.waiting.begin(), barrier.waiting.end(), block->random);
  for (Thread* thread : barrier.waiting) chance() ? wake(*thread) : wake_late(*thread);
  barrier.waiting.clear();
}

// Once all have arrived, every byte on its way must be expected: else the phase would end before it
// lands, or the next would begin in debt.
void check_bytes(const Call& call, const MBarrier& barrier) {
  if (std::labs(barrier.missing_bytes) > static_cast<long>(MAX_COUNT)) {
    fail(call, "wrong expect_tx: %ld bytes, and a phase counts up to %u", barrier.missing_bytes,
         MAX_COUNT);
  }
  if (barrier.pending == 0 && barrier.missing_bytes < barrier.in_flight) {
    fail(call, "wrong expect_tx: the phase still expects %ld bytes, and %ld are on their way",
         barrier.missing_bytes, barrier.in_flight);
  }
}

void complete_if_over(MBarrier& barrier) {
  if (barrier.pending == 0 && barrier.missing_bytes == 0) complete(barrier);
}

void arrive(const Call& call, MBarrier& barrier) {
  if (barrier.pending == 0) {
    fail(call, "more arrivals than the %u that this mbarrier was initialised for", barrier.count);
  }
  --barrier.pending;
  join(barrier.clocks.data(), self->clocks, block->width);
  join(barrier.reports, self->reports);
  ++self->clocks[self->index];
  check_bytes(call, barrier);
  complete_if_over(barrier);
}

// Whether the phase of this parity is over; if so, this thread learns what it published.
bool is_over(const Call& call, MBarrier& barrier, unsigned parity) {
  if (parity > 1) fail(call, "a parity of %u", parity);
  if (barrier.phase % 2 == parity) return false;
  join(self->clocks, barrier.completed_clocks.data(), block->width);
  join(self->reports, barrier.completed_reports);
  return true;
}

void fence_mbarriers() {
  for (auto& [address, barrier] : block->mbarriers) {
    if (barrier.creator == self->index) barrier.fenced = true;
  }
}

}  // namespace

MBarrier& mbarrier_at(const Call& call, unsigned address) {
  require_shared(call, address, 8, 8);
  const auto found = block->mbarriers.find(address);
  if (found == block->mbarriers.end()) {
    fail(call, "no mbarrier has been initialised at shared address %#x", address);
  }
  touch_shared(call, address, 8, ATOMIC);
  return found->second;
}

void initialise_mbarrier(unsigned address, unsigned count, Place at) {
  const Call call = called("mbarrier_init", at);
  require_shared(call, address, 8, 8);
  refuse_state(call, address, 8, IN_FLIGHT | IN_USE | MBARRIER);
  if (count == 0 || count > MAX_COUNT) fail(call, "%u arrivals; 1 to %u", count, MAX_COUNT);
  touch_shared(call, address, 8, WRITE);
  set_state(address, 8, WRITTEN | MBARRIER, 0);
  MBarrier& barrier = block->mbarriers[address];
  barrier.count = barrier.pending = count;
  barrier.creator = self->index;
  barrier.engine = static_cast<unsigned>(block->mbarriers.size() - 1) % COPY_ENGINES;
  block->width = block->all_clocks;
  barrier.clocks.assign(block->width, 0);
  barrier.completed_clocks.assign(block->width, 0);
}

void invalidate_mbarrier(unsigned address, Place at) {
  const Call call = called("mbarrier_invalidate", at);
  const MBarrier& barrier = mbarrier_at(call, address);
  if (barrier.in_flight || !barrier.waiting.empty()) {
    fail(call, "%ld bytes are on their way and %zu threads wait", barrier.in_flight,
         barrier.waiting.size());
  }
  touch_shared(call, address, 8, WRITE);
  set_state(address, 8, 0, WRITTEN | MBARRIER);
  block->mbarriers.erase(address);
}

void fence_initialised(Place at) {
  called("fence_mbarrier_init", at);
  fence_mbarriers();
}

void fence_proxy(Place at) {
  called("fence_proxy_async", at);
  self->fenced = self->clocks[self->index]++;
  std::copy_n(self->clocks + block->threads.size(), ENGINES, self->fenced_engines);
  fence_mbarriers();
}

void arrive_at_mbarrier(unsigned address, Place at) {
  const Call call = called("mbarrier_arrive", at);
  arrive(call, mbarrier_at(call, address));
}

void expect_bytes(unsigned address, unsigned num_bytes, bool arrives, Place at) {
  const Call call = called(arrives ? "mbarrier_arrive_expect_tx" : "mbarrier_expect_tx", at);
  MBarrier& barrier = mbarrier_at(call, address);
  barrier.missing_bytes += num_bytes;
  check_bytes(call, barrier);
  if (arrives) arrive(call, barrier);
}

bool poll_mbarrier(unsigned address, unsigned parity, Place at) {
  const Call call = called("mbarrier_try_wait", at);
  if (is_over(call, mbarrier_at(call, address), parity)) return true;
  spin_at(call);
  return false;
}

void wait_at_mbarrier(unsigned address, unsigned parity, Place at) {
  const Call call = called("mbarrier_wait", at);
  MBarrier& barrier = mbarrier_at(call, address);
  while (!is_over(call, barrier, parity)) {
    barrier.waiting.push_back(self);
    wait_at(call);
  }
}

void arrive_after_copies(unsigned address, Place at) {
  const Call call = called("mbarrier_arrive_copies", at);
  MBarrier& barrier = mbarrier_at(call, address);
  std::vector<Copy> copies = std::move(self->open);
  self->open.clear();
  for (auto& group : self->groups) {
    copies.insert(copies.end(), group.begin(), group.end());
    group.clear();
  }
  ++block->ticks[barrier.engine];
  for (const Copy& copy : copies) {
    touch_shared_as(barrier.engine, copy.call, copy.to, copy.num_bytes, COPIED);
  }
  const auto land = [&barrier, copies, tick = block->ticks[barrier.engine], call] {
    for (const Copy& copy : copies) {
      unsigned char* target = shared_memory() + copy.to;
      if (!copy.from) std::memset(target, 0, copy.num_bytes);
      if (copy.from && !copy.early) std::memcpy(target, copy.from, copy.num_bytes);
      barrier.landed.push_back({copy.to, copy.num_bytes});
    }
    std::uint32_t& known = barrier.clocks[block->threads.size() + barrier.engine];
    known = std::max(known, tick);
    if (barrier.pending == 0) fail(call, "more arrivals than this mbarrier was initialised for");
    --barrier.pending;
    complete_if_over(barrier);
  };
  if (chance()) {
    land();
  } else {
    block->work.push_back({chance(), true, call, land});
  }
}

void begin_copy(const Call& call, MBarrier& barrier, Span to, std::function<void()> land) {
  if (!barrier.fenced) {
    fail(call, "thread %u has initialised this mbarrier and not fenced it since", barrier.creator);
  }
  std::memset(shared_memory() + to.begin, 0xff, to.num_bytes);
  set_state(to.begin, to.num_bytes, WRITTEN | IN_FLIGHT, 0);
  barrier.in_flight += to.num_bytes;
  check_bytes(call, barrier);
  const auto finish = [&barrier, to, land = std::move(land), tick = block->ticks[barrier.engine]] {
    land();
    std::uint32_t& known = barrier.clocks[block->threads.size() + barrier.engine];
    known = std::max(known, tick);
    barrier.landed.push_back(to);
    barrier.in_flight -= to.num_bytes;
    barrier.missing_bytes -= to.num_bytes;
    complete_if_over(barrier);
  };
  switch (block->random() % 3) {
    case 0:
      finish();
      break;
    case 1:
      block->work.push_back({false, true, call, finish});
      break;
    default:
      block->work.push_back({true, true, call, finish});
  }
}

std::string lacks(const Thread& thread) {
  for (const auto& [address, barrier] : block->mbarriers) {
    const auto& waiting = barrier.waiting;
    if (std::find(waiting.begin(), waiting.end(), &thread) == waiting.end()) continue;
    char text[96];
    std::snprintf(text, sizeof text, " (its phase lacks %u arrivals and %ld bytes)",
                  barrier.pending, barrier.missing_bytes);
    return text;
  }
  return "";
}

}  // namespace simulator
