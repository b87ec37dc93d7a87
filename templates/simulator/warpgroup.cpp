// What whole warpgroups do besides multiplying: registers changing hands, and their ends.
#include "warpgroup.h"

#include "engines.h"
#include "hopper.h"

namespace simulator {

Warpgroup& warpgroup_of_self(const Call& call) {
  const unsigned index = self->index / WARPGROUP;
  if ((index + 1) * WARPGROUP > block->threads.size()) {
    fail(call, "thread %u is in no whole warpgroup: the block has %zu threads", self->index,
         block->threads.size());
  }
  if (block->warpgroups.size() <= index) block->warpgroups.resize(index + 1);
  std::shared_ptr<Warpgroup>& group = block->warpgroups[index];
  if (!group) {
    group = std::make_shared<Warpgroup>();
    group->index = index;
    block->width = block->all_clocks;
  }
  return *group;
}

void leave_warpgroup() {
  const unsigned index = self->index / WARPGROUP;
  if (index >= block->warpgroups.size() || !block->warpgroups[index]) return;
  const Warpgroup& group = *block->warpgroups[index];
  if (group.arrived) fail(group.call, "thread %u of the warpgroup has returned", self->index);
  const auto& member = group.members[self->index % WARPGROUP / WARP];
  if (member.issued > member.waited) {
    fail(group.last, "the thread ends before this product is waited for");
  }
}

void set_max_registers(int num_registers, bool more, Place at) {
  const Call call = called(more ? "setmaxnreg_inc" : "setmaxnreg_dec", at);
  if (num_registers < 24 || num_registers > 256 || num_registers % 8) {
    fail(call, "%d registers; a multiple of 8 from 24 to 256", num_registers);
  }
  meet_warpgroup(call, num_registers, [&](const Warpgroup&, const auto& thread) {
    for (unsigned i = 0; i < WARPGROUP; ++i) {
      if (thread(i) != num_registers) {
        fail(call, "%d and %d registers in one warpgroup", thread(i), num_registers);
      }
    }
  });
}

bool elect(Place at) {
  unsigned lane = lane_of(*self);
  meet(called("elect_one", at), ALL, lane, [](const auto&) {});
  return lane == 0;
}

}  // namespace simulator
