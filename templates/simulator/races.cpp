// Who has touched what, and in which order: accesses that nothing orders, and what orders them.
#include <algorithm>
#include <cstdio>

#include "memory.h"

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

// In whose name an access is remembered, and whose earlier accesses come before it by themselves.
struct Author {
  unsigned thread;
  std::uint32_t clock;
  unsigned follows;
};
constexpr unsigned NOBODY = ~0u;

Author plain_author() { return {self->index, self->clocks[self->index], self->index}; }

Author engine_author(unsigned engine) {
  return {static_cast<unsigned>(block->threads.size()) + engine, block->ticks[engine], NOBODY};
}

[[noreturn]] void report_race(const Call& call, const Cell& cell, Kind kind, const char* memory,
                              std::uintptr_t place) {
  char other[64];
  const unsigned count = static_cast<unsigned>(block->threads.size());
  if (cell.thread < count) {
    std::snprintf(other, sizeof other, "%s by thread %u", name_of(cell.kind), cell.thread);
  } else if (cell.thread < count + COPY_ENGINES) {
    std::snprintf(other, sizeof other, "copy that an mbarrier tells of");
  } else {
    std::snprintf(other, sizeof other, "read by wgmma of warpgroup %u",
                  cell.thread - count - COPY_ENGINES);
  }
  fail(call, "race: this %s of %s byte %#zx is not ordered after a %s of block %u", name_of(kind),
       memory, static_cast<std::size_t>(place), other, cell.block);
}

// Compares an access with those remembered, and remembers it.
__attribute__((always_inline)) inline void record(const Call& call, Cell (&cells)[CELLS], std::uint8_t bytes, Kind kind,
            const char* memory, std::uintptr_t place, const Author& author) {
  Cell* to = nullptr;
  for (Cell& cell : cells) {
    if (cell.clock == 0) {
      if (!to) to = &cell;
      continue;
    }
    if (!(cell.bytes & bytes)) continue;
    const bool mine = cell.block == block->index && cell.thread == author.follows;
    const bool both_atomic = cell.kind == ATOMIC && kind == ATOMIC;
    if (!mine && (cell.kind | kind) != READ && !both_atomic && !is_past(cell)) {
      report_race(call, cell, kind, memory, place);
    }
    // Who is ordered after this access is ordered after what it covers and follows. Only a write
    // conflicts with all that another kind does.
    const bool covers = (cell.bytes & ~bytes) == 0 && (kind & WRITE || kind == cell.kind);
    if (covers && (mine || is_past(cell))) to = &cell;
  }
  if (!to) to = &cells[block->random() % CELLS];
  *to = {block->index, author.clock, static_cast<std::uint16_t>(author.thread), bytes, kind, 0};
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

void remember_global(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind,
                     const Author& author) {
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
    record(call, page.cells[eight % (Page::BYTES / 8)], bytes, kind, "global", eight * 8,
           author);
  });
}

}  // namespace

void refuse_unfenced(const Call& call, unsigned offset, unsigned num_bytes) {
  const unsigned count = static_cast<unsigned>(block->threads.size());
  by_eights(offset, num_bytes, [&](std::uintptr_t eight, std::uint8_t bytes) {
    for (unsigned i = 0; i < CELLS; ++i) {
      const Cell& cell = block->cells[eight * CELLS + i];
      if (cell.clock == 0 || !(cell.bytes & bytes) || !(cell.kind & WRITE)) continue;
      const auto place = static_cast<unsigned>(eight * 8);
      if (cell.thread < count && block->threads[cell.thread].fenced < cell.clock) {
        fail(call, "shared byte %#x: written by thread %u, which has not fenced it since", place,
             cell.thread);
      }
      if (cell.thread >= count && cell.kind == COPIED &&
          self->fenced_engines[cell.thread - count] < cell.clock) {
        fail(call, "shared byte %#x: written by cp.async, with no fence after the wait", place);
      }
    }
  });
}

namespace {

void remember_shared(const Call& call, unsigned offset, unsigned num_bytes, Kind kind,
                     const Author& author) {
  by_eights(offset, num_bytes, [&](std::uintptr_t eight, std::uint8_t bytes) {
    auto& cells = reinterpret_cast<Cell(&)[CELLS]>(block->cells[eight * CELLS]);
    record(call, cells, bytes, kind, "shared", eight * 8, author);
  });
}

}  // namespace

void touch_shared(const Call& call, unsigned offset, unsigned num_bytes, Kind kind) {
  remember_shared(call, offset, num_bytes, kind, plain_author());
}

void touch_shared_as(unsigned engine, const Call& call, unsigned offset, unsigned num_bytes,
                     Kind kind) {
  remember_shared(call, offset, num_bytes, kind, engine_author(engine));
}

void touch_global(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind) {
  remember_global(call, address, num_bytes, kind, plain_author());
}

void touch_global_as(unsigned engine, const Call& call, std::uintptr_t address, unsigned num_bytes,
                     Kind kind) {
  remember_global(call, address, num_bytes, kind, engine_author(engine));
}

void join(std::uint32_t* to, const std::uint32_t* from, unsigned count) {
  for (unsigned i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
}

void join(Reports& to, const Reports& from) {
  for (const auto& report : from) {
    if (std::find(to.begin(), to.end(), report) == to.end()) to.push_back(report);
  }
}

std::shared_ptr<const Report> report_of_self() {
  auto report = std::make_shared<Report>();
  report->block = block->index;
  report->clocks.assign(self->clocks, self->clocks + block->all_clocks);
  ++self->clocks[self->index];
  return report;
}

void learn(const Reports& reports) {
  for (const auto& report : reports) {
    if (report->block == block->index) {
      join(self->clocks, report->clocks.data(), block->width);
    } else {
      join(self->reports, {report});
    }
  }
}

void release_at(std::uintptr_t address) {
  auto report = report_of_self();
  std::lock_guard lock(block->launch->mutex);
  Reports& reports = block->launch->published[address].reports;
  join(reports, self->reports);
  reports.push_back(std::move(report));
}

void acquire_at(std::uintptr_t address) {
  std::lock_guard lock(block->launch->mutex);
  learn(block->launch->published[address].reports);
}

}  // namespace simulator
