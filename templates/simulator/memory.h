// Which accesses a GPU would allow: bounds, alignment, copies in flight, and races.
//
// Races are found as by ThreadSanitizer: every 8 bytes remember their last few accesses, each with
// its thread and that thread's clock; two accesses race when one is a write and nothing (barrier,
// release and acquire) orders them. Shared and global memory are treated alike, threads of other
// blocks included.
#pragma once

#include "machine.h"

namespace simulator {

// COPIED: a write by cp.async that an mbarrier told of.
enum Kind : std::uint8_t { READ = 1, WRITE = 2, ATOMIC = 4, COPIED = 10 };

// An access by this thread to shared memory, `offset` bytes from its begin, of a power of two.
void touch_shared(const Call& call, unsigned offset, unsigned num_bytes, Kind kind);

// An access to any address; for shared memory, `aligned` to its size or not.
void touch(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind, bool aligned);

// The same in global memory, where a tensor must be.
void touch_global(const Call& call, std::uintptr_t address, unsigned num_bytes, Kind kind);

// An access by an engine: allowed if this thread might make it now, and remembered as the engine's.
// Who is to come after it must learn of the engine's tick.
void touch_shared_as(unsigned engine, const Call& call, unsigned offset, unsigned num_bytes,
                     Kind kind);
void touch_global_as(unsigned engine, const Call& call, std::uintptr_t address, unsigned num_bytes,
                     Kind kind);

// Fails unless shared memory has these bytes, and the address is a multiple of `alignment`.
void require_shared(const Call& call, unsigned offset, unsigned num_bytes, unsigned alignment);

// Fails where a byte has one of the bits.
void refuse_state(const Call& call, unsigned offset, unsigned num_bytes, std::uint8_t bits);
void refuse_unwritten(const Call& call, unsigned offset, unsigned num_bytes);
// Fails where a thread has written and not fenced since: copies and products might not see it.
void refuse_unfenced(const Call& call, unsigned offset, unsigned num_bytes);
void set_state(unsigned offset, unsigned num_bytes, std::uint8_t on, std::uint8_t off);

// Multiples of 16 bytes are read asynchronously from now on, until they are let go as often.
void hold(unsigned offset, unsigned num_bytes);
void let_go(unsigned offset, unsigned num_bytes);

// Joins what `from` knows into what `to` knows.
void join(Reports& to, const Reports& from);
void join(std::uint32_t* to, const std::uint32_t* from, unsigned count);

// This thread's knowledge becomes that of whoever acquires at `address`, and the other way round.
void release_at(std::uintptr_t address);
void acquire_at(std::uintptr_t address);
// An operation at `address` that orders only with fences of the threads on both sides.
void relaxed_at(std::uintptr_t address);
std::shared_ptr<const Report> report_of_self();  // the thread's clock goes on
void learn(const Reports& reports);              // what they tell is known to this thread

unsigned char* shared_memory();

}  // namespace simulator
