// What a launch, a block and a thread are to the simulator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
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
// each thread.
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

struct Thread {
  Fiber fiber;
  unsigned index = 0;
  bool done = false;
  Call waiting;  // at what, if it waits
  Call last;     // the last primitive
  std::uint32_t* clocks = nullptr;  // of all threads of the block, as far as this one knows
  Reports reports;                  // of other blocks
  std::uint32_t fenced = 0;         // own clock at the last proxy fence
  std::vector<Copy> open;           // copies of no group yet
  std::deque<std::vector<Copy>> groups;
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
  Call call;
  std::vector<Thread*> waiting;
  std::vector<std::uint32_t> clocks;
  Reports reports;
  int any = 0, all = 1, count = 0;     // of the predicates so far
  int was_any = 0, was_all = 1, was_count = 0;  // of the last round
};

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

// What releases at one address have published.
struct Published {
  Reports reports;
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
  std::vector<std::uint32_t> clocks;  // threads x threads
  std::vector<Meeting> meetings;      // one a warp
  std::vector<Barrier> barriers;
  std::vector<Thread*> ready;
  std::vector<Cell> cells;           // of shared memory
  std::vector<std::uint8_t> state;   // of each byte of shared memory: bits below
};

// Bits of Block::state.
constexpr std::uint8_t WRITTEN = 1;   // something was written here
constexpr std::uint8_t IN_FLIGHT = 2; // a copy to here has not been waited for
constexpr std::uint8_t IN_USE = 4;    // an asynchronous operation may still read this

extern thread_local Block* block;
extern thread_local Thread* self;

// Ends the launch with a fault; does not return.
[[noreturn]] void fail(const Call& call, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Lets other threads run until somebody wakes this one.
void wait_at(const Call& call);
void wake(Thread& thread);

inline bool chance() { return block->random() & 1; }

// A call of `primitive`, noted for reports.
inline Call called(const char* primitive, Place at) {
  Call call{primitive, at.line(), nullptr};
  if (self) self->last = call;
  return call;
}

}  // namespace simulator
