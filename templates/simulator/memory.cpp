#include "memory.h"

#include <algorithm>
#include <cstdio>

// Shared memory of the block that this worker runs. Kernels declare it within their functions.
alignas(1024) thread_local unsigned char shared[simulator::MAX_SHARED];

// The loaded library: constants of kernels lie in it.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;
extern "C" __attribute__((visibility("hidden"))) const char _end;

namespace simulator {

namespace {

struct Found {
  std::uintptr_t key = 0;
  const Launch* launch = nullptr;
  Page* page = nullptr;
};
thread_local Found recent_pages[256];

Page& page_of(std::uintptr_t address) {
  const std::uintptr_t key = address / Page::BYTES;
  Found& found = recent_pages[key % 256];
  if (found.key != key || found.launch != block->launch || !found.page) {
    std::lock_guard lock(block->launch->mutex);
    std::unique_ptr<Page>& page = block->launch->pages[key];
    if (!page) page = std::make_unique<Page>();
    found = {key, block->launch, page.get()};
  }
  return *found.page;
}

// Whether what the cell remembers is known to have happened before now.
bool is_past(const Cell& cell) {
  if (cell.block == block->index) return self->clocks[cell.thread] >= cell.clock;
  for (const auto& report : self->reports) {
    if (report->block == cell.block && report->clocks[cell.thread] >= cell.clock) return true;
  }
  return false;
}

const char* name_of(std::uint8_t kind) {
  return kind & READ ? "read" : kind & WRITE ? "write" : "atomic operation";
}

// Compares an access with those remembered, and remembers it.
void record(const Call& call, Cell (&cells)[CELLS], std::uint8_t bytes, Kind kind,
            const char* memory, std::uintptr_t place) {
  Cell* to = nullptr;
  for (Cell& cell : cells) {
    if (cell.clock == 0) {
      if (!to) to = &cell;
      continue;
    }
    if (!(cell.bytes & bytes)) continue;
    const bool mine = cell.block == block->index && cell.thread == self->index;
    const bool both_atomic = cell.kind == ATOMIC && kind == ATOMIC;
    if (!mine && (cell.kind | kind) != READ && !both_atomic && !is_past(cell)) {
      fail(call,
           "race: this %s of %s byte %#zx is not ordered after a %s by thread %u of block %u",
           name_of(kind), memory, static_cast<std::size_t>(place), name_of(cell.kind), cell.thread,
           cell.block);
    }
    // Who is ordered after this access is ordered after what it covers and follows.
    const bool covers = (cell.bytes & ~bytes) == 0 && (kind != READ || cell.kind == READ);
    if (covers && (mine || is_past(cell))) to = &cell;
  }
  if (!to) to = &cells[block->random() % CELLS];
  *to = {block->index, self->clocks[self->index], static_cast<std::uint16_t>(self->index), bytes,
         kind, 0};
}

// Calls `visit(first byte within 8, number of bytes)` for every 8 bytes that an access meets.
template <typename Visit>
void by_eights(std::uintptr_t begin, unsigned num_bytes, const Visit& visit) {
  const std::uintptr_t end = begin + num_bytes;
  while (begin < end) {
    const std::uintptr_t next = std::min<std::uintptr_t>(end, begin / 8 * 8 + 8);
    const unsigned first = begin % 8;
    visit(begin / 8, static_cast<std::uint8_t>(((1u << (next - begin)) - 1) << first));
    begin = next;
  }
}

void touch_global(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind) {
  bool inside = false;
  bool allowed = false;
  for (const Range& range : block->launch->ranges) {
    if (address < range.begin || address + num_bytes > range.end) continue;
    inside = true;
    allowed |= kind == READ || range.writable;
  }
  if (!inside) {
    const Range* nearest = nullptr;
    std::uintptr_t distance = ~std::uintptr_t{0};
    for (const Range& range : block->launch->ranges) {
      const std::uintptr_t gap =
          address < range.begin ? range.begin - address : address + num_bytes - range.end;
      if (gap < distance) distance = gap, nearest = &range;
    }
    const long index = nearest ? nearest - block->launch->ranges.data() : -1;
    fail(call, "%s of %u bytes outside every tensor, %zu bytes %s argument %ld", name_of(kind),
         num_bytes, static_cast<std::size_t>(distance),
         nearest && address < nearest->begin ? "before" : "past the end of", index);
  }
  if (!allowed) fail(call, "%s of %u bytes of a tensor that is only read", name_of(kind), num_bytes);
  by_eights(address, num_bytes, [&](std::uintptr_t eight, std::uint8_t bytes) {
    Page& page = page_of(eight * 8);
    std::lock_guard lock(page.mutex);
    record(call, page.cells[eight % (Page::BYTES / 8)], bytes, kind, "global", eight * 8);
  });
}

}  // namespace

unsigned char* shared_memory() { return shared; }

void require_shared(const Call& call, unsigned offset, unsigned num_bytes, unsigned alignment) {
  if (offset % alignment) {
    fail(call, "shared address %#x is not a multiple of %u", offset, alignment);
  }
  const unsigned size = block->launch->shared_bytes;
  if (offset >= size || num_bytes > size - offset) {
    fail(call, "%u bytes at shared address %#x, but a block has %u bytes of shared memory",
         num_bytes, offset, size);
  }
}

void refuse_state(const Call& call, unsigned offset, unsigned num_bytes, std::uint8_t bits) {
  for (unsigned i = offset; i < offset + num_bytes; ++i) {
    const std::uint8_t found = block->state[i] & bits;
    if (found & IN_FLIGHT) fail(call, "shared byte %#x: its copy has not been waited for", i);
    if (found & IN_USE) fail(call, "shared byte %#x: something may still be reading it", i);
  }
}

void set_state(unsigned offset, unsigned num_bytes, std::uint8_t on, std::uint8_t off) {
  for (unsigned i = offset; i < offset + num_bytes; ++i) {
    block->state[i] = static_cast<std::uint8_t>((block->state[i] & ~off) | on);
  }
}

void touch_shared(const Call& call, unsigned offset, unsigned num_bytes, Kind kind) {
  by_eights(offset, num_bytes, [&](std::uintptr_t eight, std::uint8_t bytes) {
    auto& cells = reinterpret_cast<Cell(&)[CELLS]>(block->cells[eight * CELLS]);
    record(call, cells, bytes, kind, "shared", eight * 8);
  });
}

void touch(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind, bool aligned) {
  if (self->fiber.stack().holds(address)) return;
  const std::uintptr_t offset = address - reinterpret_cast<std::uintptr_t>(shared);
  if (offset < MAX_SHARED) {
    const unsigned place = static_cast<unsigned>(offset);
    require_shared(call, place, num_bytes, aligned ? num_bytes : 1);
    refuse_state(call, place, num_bytes, IN_FLIGHT | (kind == READ ? 0 : IN_USE));
    if (kind == READ) {
      for (unsigned i = place; i < place + num_bytes; ++i) {
        if (!(block->state[i] & WRITTEN)) fail(call, "shared byte %#x is read before a write", i);
      }
    } else {
      set_state(place, num_bytes, WRITTEN, 0);
    }
    touch_shared(call, place, num_bytes, kind);
    return;
  }
  const auto image = reinterpret_cast<std::uintptr_t>(&__ehdr_start);
  if (address - image < static_cast<std::uintptr_t>(&_end - &__ehdr_start)) return;
  if (aligned && address % num_bytes) {
    fail(call, "address of %u bytes is not a multiple of their number", num_bytes);
  }
  touch_global(call, address, num_bytes, kind);
}

void join(std::uint32_t* to, const std::uint32_t* from, unsigned count) {
  for (unsigned i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}

void join(Reports& to, const Reports& from) {
  for (const auto& report : from) {
    if (std::find(to.begin(), to.end(), report) == to.end()) to.push_back(report);
  }
}

void release_at(std::uintptr_t address) {
  auto report = std::make_shared<Report>();
  report->block = block->index;
  report->clocks.assign(self->clocks, self->clocks + block->threads.size());
  std::lock_guard lock(block->launch->mutex);
  Reports& reports = block->launch->published[address].reports;
  join(reports, self->reports);
  reports.push_back(std::move(report));
  ++self->clocks[self->index];
}

void acquire_at(std::uintptr_t address) {
  std::lock_guard lock(block->launch->mutex);
  for (const auto& report : block->launch->published[address].reports) {
    if (report->block == block->index) {
      join(self->clocks, report->clocks.data(), static_cast<unsigned>(block->threads.size()));
    } else {
      join(self->reports, {report});
    }
  }
}

}  // namespace simulator

// What the compiler calls before every access of a kernel that is no register, under
// -fsanitize=thread.
using namespace simulator;

namespace {

void plain(void* address, unsigned num_bytes, Kind kind, bool aligned, const void* code) {
  if (!self) return;
  touch({"", 0, code}, reinterpret_cast<std::uintptr_t>(address), num_bytes, kind, aligned);
}

}  // namespace

#define PLAIN(name, bytes, kind, aligned)                                \
  extern "C" void __tsan_##name(void* address) {                         \
    plain(address, bytes, kind, aligned, __builtin_return_address(0));   \
  }
PLAIN(read1, 1, READ, true)
PLAIN(read2, 2, READ, true)
PLAIN(read4, 4, READ, true)
PLAIN(read8, 8, READ, true)
PLAIN(read16, 16, READ, true)
PLAIN(write1, 1, WRITE, true)
PLAIN(write2, 2, WRITE, true)
PLAIN(write4, 4, WRITE, true)
PLAIN(write8, 8, WRITE, true)
PLAIN(write16, 16, WRITE, true)
PLAIN(unaligned_read2, 2, READ, false)
PLAIN(unaligned_read4, 4, READ, false)
PLAIN(unaligned_read8, 8, READ, false)
PLAIN(unaligned_read16, 16, READ, false)
PLAIN(unaligned_write2, 2, WRITE, false)
PLAIN(unaligned_write4, 4, WRITE, false)
PLAIN(unaligned_write8, 8, WRITE, false)
PLAIN(unaligned_write16, 16, WRITE, false)
#undef PLAIN

extern "C" void __tsan_read_range(void* address, unsigned long num_bytes) {
  plain(address, static_cast<unsigned>(num_bytes), READ, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* address, unsigned long num_bytes) {
  plain(address, static_cast<unsigned>(num_bytes), WRITE, false, __builtin_return_address(0));
}
extern "C" void* __tsan_memcpy(void* to, const void* from, unsigned long num_bytes) {
  const auto size = static_cast<unsigned>(num_bytes);
  plain(const_cast<void*>(from), size, READ, false, __builtin_return_address(0));
  plain(to, size, WRITE, false, __builtin_return_address(0));
  return std::memcpy(to, from, num_bytes);
}
extern "C" void* __tsan_memset(void* to, int value, unsigned long num_bytes) {
  plain(to, static_cast<unsigned>(num_bytes), WRITE, false, __builtin_return_address(0));
  return std::memset(to, value, num_bytes);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}

// What it calls where a pointer lacks its type's alignment, under -fsanitize=alignment, or leaves a
// local object, under -fsanitize=object-size. The data begin with a source location.
struct TypeMismatch {
  const char* file;
  std::uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};

extern "C" void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, std::uintptr_t pointer) {
  if (!self) return;
  const char* what = data->kind == 1 ? "store" : "load";
  if (data->log_alignment == 0) fail({"", data->line, nullptr}, "%s outside its object", what);
  fail({"", data->line, nullptr}, "%s at an address that is not a multiple of %u%s",
       what, 1u << data->log_alignment,
       pointer ? "" : ": a null pointer");
}

// What it calls where an index leaves an array whose size its type tells, under -fsanitize=bounds:
// registers of a thread, mostly, which no access above sees.
struct OutOfBounds {
  const char* file;
  std::uint32_t line, column;
};

extern "C" void __ubsan_handle_out_of_bounds(OutOfBounds* data, std::uintptr_t index) {
  if (!self) return;
  fail({"", data->line, nullptr}, "index %zd is outside its array",
       static_cast<std::ptrdiff_t>(index));
}
