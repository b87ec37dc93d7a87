// What a launch, a block and a thread are to the simulator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "fiber.h"
#include "words.h"

namespace simulator {

constexpr unsigned WARP = 32;
constexpr unsigned MAX_SHARED = 256 * 1024;
constexpr unsigned MAX_BARRIERS = 16;
constexpr unsigned WARPGROUP = 128;

// What works beside the threads of a block has clocks of its own, after theirs: the copies of each
// mbarrier (which share a clock where there are many), and the products of each warpgroup.
constexpr unsigned COPY_ENGINES = 24;
constexpr unsigned PRODUCT_ENGINES = 8;
constexpr unsigned ENGINES = COPY_ENGINES + PRODUCT_ENGINES;

// A primitive being called. Line 0: a plain access, whose line its code address tells.
struct Call {
  const char* primitive = "";
  unsigned line = 0;
  const void* code = nullptr;
};

// Memory that a launch may touch. Ranges may overlap: views of one tensor.
struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
  std::uint64_t writable;
};

// How far threads of one block were when another block learned of it. `clocks` has one count for
// each thread and each engine.
struct Report {
  unsigned block;
  std::vector<std::uint32_t> clocks;
};
using Reports = std::vector<std::shared_ptr<const Report>>;

// A copy from global to shared memory on its way.
struct Copy {
  unsigned to;
  unsigned num_bytes;
  const void* from;  // null: zeros
  bool early;        // its bytes are already there, though nobody may know
  Call call;
};

// Bytes of shared memory from `begin`.
struct Span {
  unsigned begin;
  unsigned num_bytes;
};

// 16 bytes of shared memory, of which those from `begin` to `end` are also in global memory.
struct Piece {
  unsigned shared;
  unsigned begin, end;
  unsigned char* global;  // the place of `begin`
};

// A bulk copy from shared to global memory on its way.
struct Store {
  Span from;
  std::vector<Piece> pieces;
  std::vector<unsigned char> bytes;  // as they were read, piece by piece; empty until then
  Call call;
};

// What a release has published.
struct Published {
  Reports reports;
};

struct Thread {
  Fiber fiber;
  unsigned index = 0;
  bool done = false;
  Call waiting;  // at what, if it waits
  Call last;     // the last primitive
  std::uint32_t* clocks = nullptr;  // of all threads and engines, as far as this one knows
  Reports reports;                  // of other blocks
  std::uint32_t fenced = 0;         // own clock at the last proxy fence
  std::uint32_t fenced_engines[ENGINES] = {};  // what it knew of them by then
  std::vector<Copy> open;           // copies of no group yet
  std::deque<std::vector<Copy>> groups;
  std::vector<Store> open_stores;  // to global memory, of no group yet
  std::deque<std::vector<Store>> store_groups;
  std::shared_ptr<const Published> fence;  // what it knew at the last fence of the GPU's scope
  Reports seen;                            // by atomics that acquire only at the next such fence
};

// Where the lanes of a warp meet. Each lane's slot points at its own operands.
struct Meeting {
  unsigned arrived = 0;
  unsigned mask = 0;
  Call call;
  void* slot[WARP] = {};
};

struct Barrier {
  unsigned arrived = 0;
  unsigned expected = 0;
  std::vector<bool> has_arrived;  // of named barriers, by thread
  Call call;
  std::vector<Thread*> waiting;
  std::vector<std::uint32_t> clocks;
  Reports reports;
  int any = 0, all = 1, count = 0;     // of the predicates so far
  int was_any = 0, was_all = 1, was_count = 0;  // of the last round
};

// A barrier in shared memory, whose phases end when all have arrived and all bytes have landed.
struct MBarrier {
  unsigned count = 0;      // arrivals that a phase takes
  unsigned pending = 0;    // of them, not there yet
  unsigned phase = 0;      // the one that is not complete
  long missing_bytes = 0;  // expected and not landed
  long in_flight = 0;      // bytes of copies issued and not landed
  unsigned creator = 0;
  unsigned engine = 0;
  bool fenced = false;     // so that copies may complete on it
  std::vector<std::uint32_t> clocks, completed_clocks;  // of this phase, and of the last
  Reports reports, completed_reports;
  std::vector<Thread*> waiting;
  std::vector<Span> landed;  // in this phase
};

// Work of an engine that may be done at any time from now on.
struct Work {
  bool lazy;  // only when nobody else can go on
  bool owed;  // the block must not end before
  Call call;
  std::function<void()> run;
};

struct Warpgroup;

// One access that the race detector remembers, of up to 8 bytes.
struct Cell {
  std::uint32_t block = 0;
  std::uint32_t clock = 0;  // 0: no access
  std::uint16_t thread = 0;
  std::uint8_t bytes = 0;  // of the 8, a bit each
  std::uint8_t kind = 0;
  std::uint32_t unused = 0;
};
constexpr unsigned CELLS = 4;  // for each 8 bytes

// What the detector knows of 4 KB of global memory.
struct Page {
  static constexpr std::uintptr_t BYTES = 4096;
  std::mutex mutex;
  Cell cells[BYTES / 8][CELLS] = {};
};

// Figures of a launch.
struct Figures {
  std::atomic<std::uint64_t> bank_conflicts{0};
  std::atomic<std::uint64_t> switches{0};
};

struct Launch {
  unsigned grid, threads, shared_bytes;
  std::uint64_t seed;
  const void* params;
  std::vector<Range> ranges;
  void (*kernel)(const void* params);

  std::mutex atomic;  // held during an atomic operation
  std::mutex mutex;   // of what follows
  std::map<std::uintptr_t, std::unique_ptr<Page>> pages;
  std::map<std::uintptr_t, Published> published;
  std::string fault;

  std::atomic<bool> failed{false};
  std::atomic<unsigned> next_block{0};
  Figures figures;
};

// A block and the worker that runs it.
struct Block {
  Launch* launch = nullptr;
  unsigned index = 0;
  unsigned alive = 0;
  std::mt19937 random;
  std::vector<Thread> threads;
  std::vector<std::unique_ptr<Stack>> stacks;
  unsigned all_clocks = 0;            // of a thread: threads and engines
  unsigned width = 0;                 // of them, those that may have moved
  std::vector<std::uint32_t> clocks;  // threads x all_clocks
  std::uint32_t ticks[ENGINES] = {};  // clocks of engines
  std::vector<Meeting> meetings;      // one a warp
  std::vector<Barrier> barriers;
  std::map<unsigned, MBarrier> mbarriers;  // by address
  std::vector<std::shared_ptr<Warpgroup>> warpgroups;
  std::vector<Work> work;
  std::vector<Thread*> ready;
  unsigned spins = 0;  // since anything happened
  std::vector<Cell> cells;           // of shared memory
  std::vector<std::uint8_t> state;   // of each byte of shared memory: bits below
  std::vector<std::uint16_t> uses;   // of each 16 bytes, by asynchronous reads
};

// Bits of Block::state.
constexpr std::uint8_t WRITTEN = 1;   // something was written here
constexpr std::uint8_t IN_FLIGHT = 2; // a copy to here has not been waited for
constexpr std::uint8_t IN_USE = 4;    // an asynchronous operation may still read this
constexpr std::uint8_t MBARRIER = 8;  // an mbarrier is here, which only its primitives touch

extern thread_local Block* block;
extern thread_local Thread* self;

// Ends the launch with a fault; does not return.
[[noreturn]] void fail(const Call& call, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Lets other threads run until somebody wakes this one.
void wait_at(const Call& call);
void wake(Thread& thread);
void wake_late(Thread& thread);  // after those who can go on

// Lets other threads run, and then this one again: a poll that found nothing.
void spin_at(const Call& call);

inline bool chance() { return block->random() & 1; }

// A call of `primitive`, noted for reports.
inline Call called(const char* primitive, Place at) {
  Call call{primitive, at.line(), nullptr};
  if (self) self->last = call;
  return call;
}

}  // namespace simulator
