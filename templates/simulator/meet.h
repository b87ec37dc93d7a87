// Where threads that act as one meet: the lanes of a warp, and the threads of a warpgroup.
#pragma once

#include "machine.h"

namespace simulator {

constexpr unsigned ALL = 0xffffffff;

inline unsigned lane_of(const Thread& thread) { return thread.index % WARP; }

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

}  // namespace simulator
