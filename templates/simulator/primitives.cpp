// What the primitives do: shuffles, votes, atomic operations, vectors and copies.
#include "primitives.h"

#include <algorithm>

#include "machine.h"
#include "meet.h"
#include "memory.h"

namespace simulator {

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
  relaxed_at(reinterpret_cast<std::uintptr_t>(address));
  const int before = *address;
  if (before == compare) *address = value;
  return before;
}

int add_atomically(int* address, int value, Place at) {
  touch(called("atomicAdd", at), reinterpret_cast<std::uintptr_t>(address), 4, ATOMIC, true);
  std::lock_guard lock(block->launch->atomic);
  relaxed_at(reinterpret_cast<std::uintptr_t>(address));
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
  refuse_state(call, to, num_bytes, IN_FLIGHT | IN_USE | MBARRIER);
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

}  // namespace simulator
