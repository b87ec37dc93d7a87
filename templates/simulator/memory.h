// Which accesses a GPU would allow: bounds, alignment, copies in flight, and races.
//
// Races are found as by ThreadSanitizer: every 8 bytes remember their last few accesses, each with
// its thread and that thread's clock; two accesses race when one is a write and nothing (barrier,
// release and acquire) orders them. Shared and global memory are treated alike, threads of other
// blocks included.
#pragma once

#include "machine.h"

namespace simulator {

enum Kind : std::uint8_t { READ = 1, WRITE = 2, ATOMIC = 4 };

// An access by this thread to shared memory, `offset` bytes from its begin, of a power of two.
void touch_shared(const Call& call, unsigned offset, unsigned num_bytes, Kind kind);

// An access to any address; for shared memory, `aligned` to its size or not.
void touch(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind, bool aligned);

// Fails unless shared memory has these bytes, and the address is a multiple of `alignment`.
void require_shared(const Call& call, unsigned offset, unsigned num_bytes, unsigned alignment);

// Fails where a byte has one of the bits.
void refuse_state(const Call& call, unsigned offset, unsigned num_bytes, std::uint8_t bits);
void set_state(unsigned offset, unsigned num_bytes, std::uint8_t on, std::uint8_t off);

// Joins what `from` knows into what `to` knows.
void join(Reports& to, const Reports& from);
void join(std::uint32_t* to, const std::uint32_t* from, unsigned count);

// This thread's knowledge becomes that of whoever acquires at `address`, and the other way round.
void release_at(std::uintptr_t address);
void acquire_at(std::uintptr_t address);

unsigned char* shared_memory();

}  // namespace simulator
