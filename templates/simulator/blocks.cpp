// Runs a launch: workers take blocks in turn, and each runs the threads of its block as fibers.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "machine.h"
#include "memory.h"

namespace simulator {

thread_local Block* block = nullptr;
thread_local Thread* self = nullptr;

Index thread_index() { return {self->index, 0, 0}; }
Index block_index() { return {block->index, 0, 0}; }
Index grid_size() { return {block->launch->grid, 1, 1}; }
Index block_size() { return {block->launch->threads, 1, 1}; }

void fail(const Call& call, const char* format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  Launch& launch = *block->launch;
  if (!launch.failed.exchange(true)) {
    // A plain access tells its line by its code; how far into the library that lies is all that
    // means anything elsewhere. The last primitive helps where nothing else does.
    const Call& last = self ? self->last : call;
    char line[1024];
    std::snprintf(line, sizeof line, "%u\t%d\t%s\t%u\t%p\t%s\t%u\t%s", block->index,
                  self ? static_cast<int>(self->index) : -1, call.primitive, call.line, call.code,
                  last.primitive, last.line, text);
    std::lock_guard lock(launch.mutex);
    launch.fault = line;
  }
  for (;;) {
    if (self) self->fiber.leave();
    std::abort();  // nobody enters a fiber of a launch that has failed
  }
}

void wait_at(const Call& call) {
  self->waiting = call;
  self->fiber.leave();
  self->waiting = {};
}

void wake(Thread& thread) { block->ready.push_back(&thread); }

namespace {

void finish_thread() {
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
  block->clocks.assign(static_cast<std::size_t>(count) * count, 0);
  block->meetings.assign((count + WARP - 1) / WARP, {});
  block->barriers.assign(MAX_BARRIERS, {});
  for (Barrier& barrier : block->barriers) barrier.clocks.assign(count, 0);
  block->cells.assign((launch.shared_bytes + 7) / 8 * CELLS, {});
  block->state.assign(launch.shared_bytes, 0);
  std::fill_n(shared_memory(), launch.shared_bytes, 0xff);  // NaN in every format
  block->ready.clear();
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = block->threads[i];
    thread.index = i;
    thread.clocks = block->clocks.data() + static_cast<std::size_t>(i) * count;
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
    self = nullptr;
    char text[160] = "";
    if (other) {
      std::snprintf(text, sizeof text, "; %u wait elsewhere, thread %u at %s, line %u", elsewhere,
                    other->index, other->waiting.primitive, other->waiting.line);
    }
    Launch& launch = *block->launch;
    if (launch.failed.exchange(true)) return;
    char line[512];
    std::snprintf(line, sizeof line, "%u\t%u\t%s\t%u\t%p\t%s\t%u\tdeadlock: %u threads never leave%s",
                  block->index, thread.index, thread.waiting.primitive, thread.waiting.line, nullptr,
                  thread.last.primitive, thread.last.line, block->alive, text);
    std::lock_guard lock(launch.mutex);
    launch.fault = line;
    return;
  }
}

void run_block() {
  Launch& launch = *block->launch;
  std::uint64_t switches = 0;
  while (!block->ready.empty() && !launch.failed) {
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
  if (!launch.failed && block->alive) report_deadlock();
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
