// Runs a launch: workers take blocks in turn, and each runs the threads of its block as fibers.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "engines.h"
#include "machine.h"
#include "memory.h"

namespace simulator {

thread_local Block* block = nullptr;
thread_local Thread* self = nullptr;

Index thread_index() { return {self->index, 0, 0}; }
Index block_index() { return {block->index, 0, 0}; }
Index grid_size() { return {block->launch->grid, 1, 1}; }
Index block_size() { return {block->launch->threads, 1, 1}; }

namespace {

struct Failed {};

// Keeps the first fault of the launch. A plain access tells its line by its code; how far into the
// library that lies is all that means anything elsewhere. The last primitive helps where nothing
// else does.
void note_fault(const Thread* thread, const Call& call, const char* text) {
  Launch& launch = *block->launch;
  if (launch.failed.exchange(true)) return;
  const Call& last = thread ? thread->last : call;
  char line[1024];
  std::snprintf(line, sizeof line, "%u\t%d\t%s\t%u\t%p\t%s\t%u\t%s", block->index,
                thread ? static_cast<int>(thread->index) : -1, call.primitive, call.line, call.code,
                last.primitive, last.line, text);
  std::lock_guard lock(launch.mutex);
  launch.fault = line;
}

}  // namespace

void fail(const Call& call, const char* format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  note_fault(self, call, text);
  if (!self) throw Failed{};  // in an engine's work
  for (;;) self->fiber.leave();  // nobody enters a fiber of a launch that has failed
}

void wait_at(const Call& call) {
  self->waiting = call;
  self->fiber.leave();
  self->waiting = {};
}

void wake(Thread& thread) { block->ready.push_back(&thread); }

void wake_late(Thread& thread) { block->ready.insert(block->ready.begin(), &thread); }

void spin_at(const Call& call) {
  constexpr unsigned MAX_SPINS = 1 << 20;
  if (++block->spins > MAX_SPINS) fail(call, "polls forever, and nothing else happens");
  if (block->ready.empty() && block->work.empty()) std::this_thread::yield();  // to other blocks
  wake_late(*self);
  wait_at(call);
}

namespace {

void finish_thread() {
  block->spins = 0;
  finish_stores();
  leave_warpgroup();
  if (!self->groups.empty() || !self->open.empty()) {
    for (const auto& group : self->groups) {
      if (!group.empty()) fail(group.front().call, "the thread ends before this copy is waited for");
    }
    if (!self->open.empty()) {
      fail(self->open.front().call, "the thread ends before this copy is waited for");
    }
  }
  self->done = true;
  --block->alive;
  Meeting& meeting = block->meetings[self->index / WARP];
  if (meeting.arrived && (meeting.mask >> self->index % WARP & 1)) {
    fail(meeting.call, "lane %u of the warp has returned", self->index % WARP);
  }
  // A barrier of all threads no longer waits for this one.
  Barrier& barrier = block->barriers[0];
  if (barrier.arrived && barrier.arrived == block->alive) {
    fail(barrier.call, "thread %u has returned and is not at this barrier", self->index);
  }
}

void run_thread() {
  self->fiber.begin();
  block->launch->kernel(block->launch->params);
  finish_thread();
  self->fiber.leave();
  std::abort();
}

void prepare(Launch& launch, unsigned index) {
  const unsigned count = launch.threads;
  block->launch = &launch;
  block->index = index;
  block->alive = count;
  block->random.seed(static_cast<unsigned>(launch.seed * 0x9e3779b1u + index));
  while (block->stacks.size() < count) block->stacks.push_back(std::make_unique<Stack>());
  block->threads = std::vector<Thread>(count);
  block->all_clocks = count + ENGINES;
  block->width = count;
  block->clocks.assign(static_cast<std::size_t>(count) * block->all_clocks, 0);
  std::fill_n(block->ticks, ENGINES, 0);
  block->meetings.assign((count + WARP - 1) / WARP, {});
  block->barriers.assign(MAX_BARRIERS, {});
  for (Barrier& barrier : block->barriers) barrier.clocks.assign(block->all_clocks, 0);
  block->cells.assign((launch.shared_bytes + 7) / 8 * CELLS, {});
  block->state.assign(launch.shared_bytes, 0);
  block->uses.assign((launch.shared_bytes + 15) / 16, 0);
  block->mbarriers.clear();
  block->warpgroups.clear();
  block->work.clear();
  block->spins = 0;
  std::fill_n(shared_memory(), launch.shared_bytes, 0xff);  // NaN in every format
  block->ready.clear();
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = block->threads[i];
    thread.index = i;
    thread.clocks = block->clocks.data() + static_cast<std::size_t>(i) * block->all_clocks;
    thread.clocks[i] = 1;
    thread.fiber.prepare(*block->stacks[i], run_thread);
    block->ready.push_back(&thread);
  }
  if (launch.seed % 3 == 0) std::reverse(block->ready.begin(), block->ready.end());
  if (launch.seed % 3 == 2) std::shuffle(block->ready.begin(), block->ready.end(), block->random);
}

void report_deadlock() {
  for (Thread& thread : block->threads) {
    if (thread.done) continue;
    unsigned elsewhere = 0;
    const Thread* other = nullptr;
    for (const Thread& each : block->threads) {
      if (each.done || each.waiting.line == thread.waiting.line) continue;
      ++elsewhere;
      other = &each;
    }
    char text[320];
    int length = std::snprintf(text, sizeof text, "deadlock: %u threads never leave%s", block->alive,
                               lacks(thread).c_str());
    if (other) {
      std::snprintf(text + length, sizeof text - length,
                    "; %u wait elsewhere, thread %u at %s, line %u%s", elsewhere, other->index,
                    other->waiting.primitive, other->waiting.line, lacks(*other).c_str());
    }
    note_fault(&thread, thread.waiting, text);
    return;
  }
}

// Does a piece of the engines' work, if it must or by chance. Whether it did.
bool work_on(bool must) {
  if (!must && block->random() % 8) return false;
  const std::size_t chosen = block->random() % block->work.size();
  if (block->work[chosen].lazy && !must) return false;
  const Work work = std::move(block->work[chosen]);
  block->work.erase(block->work.begin() + static_cast<long>(chosen));
  block->spins = 0;
  self = nullptr;
  try {
    work.run();
  } catch (const Failed&) {
  }
  return true;
}

void run_block() {
  Launch& launch = *block->launch;
  std::uint64_t switches = 0;
  while (block->alive && !launch.failed) {
    if (!block->work.empty() && work_on(block->ready.empty())) continue;
    if (block->ready.empty()) break;
    // The last to wake goes on, mostly: threads of a warp stay together. Now and then any other.
    std::vector<Thread*>& ready = block->ready;
    if (block->random() % 16 == 0) std::swap(ready.back(), ready[block->random() % ready.size()]);
    self = ready.back();
    ready.pop_back();
    self->fiber.enter();
    ++switches;
  }
  launch.figures.switches += switches;
  self = nullptr;
  if (launch.failed) return;
  if (block->alive) report_deadlock();
  for (const Work& work : block->work) {
    if (work.owed) note_fault(nullptr, work.call, "the block ends while this is in flight");
  }
}

void work(Launch& launch) {
  Block mine;
  block = &mine;
  // Every order of blocks is legal; seeds try some.
  const unsigned stride = launch.seed % 2 ? launch.grid - 1 : 1;
  for (;;) {
    const unsigned turn = launch.next_block++;
    if (turn >= launch.grid || launch.failed) break;
    const unsigned index =
        stride == 1 ? turn : static_cast<unsigned>(launch.grid - 1 - turn);
    prepare(launch, index);
    run_block();
  }
  block = nullptr;
}

}  // namespace

}  // namespace simulator

extern "C" __attribute__((visibility("hidden"))) void pagegen_kernel(const void* params);

// What the host passes. `report` takes the fault, empty if there is none.
struct PagegenLaunch {
  std::uint64_t seed;
  const void* params;
  const simulator::Range* ranges;
  char* report;
  std::uint64_t figures[2];
  std::uint32_t num_ranges, report_bytes;
  std::uint32_t grid, threads, shared_bytes, workers;
};

extern "C" __attribute__((visibility("default"))) int pagegen_simulate(PagegenLaunch* given) {
  using namespace simulator;
  Launch launch;
  launch.grid = given->grid;
  launch.threads = given->threads;
  launch.shared_bytes = given->shared_bytes;
  launch.seed = given->seed;
  launch.params = given->params;
  launch.ranges.assign(given->ranges, given->ranges + given->num_ranges);
  launch.kernel = pagegen_kernel;
  if (launch.shared_bytes > MAX_SHARED || launch.threads > 1024 || launch.threads % WARP) return 2;
  // Workers are threads of their own, even if there is only one: they own what threads own.
  std::vector<std::thread> workers;
  const unsigned count = std::max(1u, std::min(given->workers, launch.grid));
  for (unsigned i = 0; i < count; ++i) workers.emplace_back(work, std::ref(launch));
  for (std::thread& worker : workers) worker.join();
  std::snprintf(given->report, given->report_bytes, "%s", launch.fault.c_str());
  given->figures[0] = launch.figures.bank_conflicts;
  given->figures[1] = launch.figures.switches;
  return launch.failed ? 1 : 0;
}

extern "C" __attribute__((visibility("default"))) const void* pagegen_image() {
  return reinterpret_cast<const void*>(&pagegen_simulate);
}
