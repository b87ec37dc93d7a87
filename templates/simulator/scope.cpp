// Orders between blocks: releases, acquires and fences of the GPU's scope.
#include "hopper.h"
#include "machine.h"
#include "memory.h"

namespace simulator {

void relaxed_at(std::uintptr_t address) {
  std::lock_guard lock(block->launch->mutex);
  Reports& reports = block->launch->published[address].reports;
  join(self->seen, reports);
  if (self->fence) join(reports, self->fence->reports);
}

void fence_scope(const char* primitive, Place at) {
  called(primitive, at);
  learn(self->seen);
  self->seen.clear();
  auto fence = std::make_shared<Published>();
  fence->reports = self->reports;
  fence->reports.push_back(report_of_self());
  self->fence = std::move(fence);
}

int read_acquire(const int* address, Place at) {
  const Call call = called("load_acquire", at);
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  touch(call, place, 4, ATOMIC, true);
  int value;
  {
    std::lock_guard lock(block->launch->atomic);
    acquire_at(place);
    value = *address;
  }
  spin_at(call);  // who polls lets others run
  return value;
}

void write_release(int* address, int value, Place at) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  touch(called("store_release", at), place, 4, ATOMIC, true);
  std::lock_guard lock(block->launch->atomic);
  release_at(place);
  *address = value;
}

void add_release(int* address, int value, Place at) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  touch(called("add_release", at), place, 4, ATOMIC, true);
  std::lock_guard lock(block->launch->atomic);
  release_at(place);
  *address += value;
}

}  // namespace simulator
