#include "memory.h"

// Shared memory of the block that this worker runs. Kernels declare it within their functions.
alignas(1024) thread_local unsigned char shared[simulator::MAX_SHARED];

// The loaded library: constants of kernels lie in it.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;
extern "C" __attribute__((visibility("hidden"))) const char _end;

namespace simulator {

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
    if (found & MBARRIER) fail(call, "shared byte %#x: an mbarrier is here", i);
  }
}

void set_state(unsigned offset, unsigned num_bytes, std::uint8_t on, std::uint8_t off) {
  for (unsigned i = offset; i < offset + num_bytes; ++i) {
    block->state[i] = static_cast<std::uint8_t>((block->state[i] & ~off) | on);
  }
}

void refuse_unwritten(const Call& call, unsigned offset, unsigned num_bytes) {
  for (unsigned i = offset; i < offset + num_bytes; ++i) {
    if (!(block->state[i] & WRITTEN)) fail(call, "shared byte %#x is read before a write", i);
  }
}

void hold(unsigned offset, unsigned num_bytes) {
  for (unsigned i = offset; i < offset + num_bytes; i += 16) {
    if (block->uses[i / 16]++ == 0) set_state(i, 16, IN_USE, 0);
  }
}

void let_go(unsigned offset, unsigned num_bytes) {
  for (unsigned i = offset; i < offset + num_bytes; i += 16) {
    if (--block->uses[i / 16] == 0) set_state(i, 16, 0, IN_USE);
  }
}

void touch(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind, bool aligned) {
  if (self->fiber.stack().holds(address)) return;
  const std::uintptr_t offset = address - reinterpret_cast<std::uintptr_t>(shared);
  if (offset < MAX_SHARED) {
    const unsigned place = static_cast<unsigned>(offset);
    require_shared(call, place, num_bytes, aligned ? num_bytes : 1);
    refuse_state(call, place, num_bytes, MBARRIER | IN_FLIGHT | (kind == READ ? 0 : IN_USE));
    if (kind == READ) {
      refuse_unwritten(call, place, num_bytes);
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
