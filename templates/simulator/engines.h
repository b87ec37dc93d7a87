// What works beside threads: copies that mbarriers tell of, bulk stores, and products of
// warpgroups. Their work waits in Block::work until the scheduler takes it, or is waited for.
#pragma once

#include <string>

#include "machine.h"

namespace simulator {

// The engine of a warpgroup's products.
inline unsigned product_engine(unsigned warpgroup) { return COPY_ENGINES + warpgroup; }

// An initialised mbarrier that this thread may use; fails where there is none.
MBarrier& mbarrier_at(const Call& call, unsigned address);

// A copy of `num_bytes` to `to` begins, of which `barrier` tells: its bytes are refused to all until
// the phase is over. `land` is called once, at any time until then.
void begin_copy(const Call& call, MBarrier& barrier, Span to, std::function<void()> land);

// What the mbarrier at which a thread waits still lacks, for reports.
std::string lacks(const Thread& thread);

// The ends of a thread, for stores and for its warpgroup.
void finish_stores();
void leave_warpgroup();

}  // namespace simulator
