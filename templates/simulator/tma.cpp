// Copies of boxes of tensors and of runs of bytes, by the engine that completes on mbarriers.
#include <algorithm>

#include "engines.h"
#include "hopper.h"
#include "memory.h"
#include "tensor_map.h"

namespace simulator {

namespace {

TensorMapFields fields_of(const Call& call, const void* map, unsigned rank) {
  if (reinterpret_cast<std::uintptr_t>(map) % 64) {
    fail(call, "a tensor map at an address that is not a multiple of 64");
  }
  TensorMapFields fields;
  std::memcpy(&fields, map, sizeof fields);
  if (fields.magic != TensorMapFields::MAGIC) fail(call, "no tensor map is here");
  if (rank && fields.rank != rank) {
    fail(call, "a tensor map of rank %u, and %u coordinates", fields.rank, rank);
  }
  return fields;
}

// The engine takes 16 bytes at a time along the innermost dimension; elsewhere it would end with an
// illegal instruction (seen on an H200).
void require_units(const Call& call, const TensorMapFields& fields, const int* coordinates) {
  if (static_cast<long>(coordinates[0]) * fields.element_bytes % 16) {
    fail(call, "the innermost coordinate, %d elements of %u bytes, is not a multiple of 16 bytes",
         coordinates[0], fields.element_bytes);
  }
}

unsigned bytes_of(const TensorMapFields& fields) {
  unsigned num_bytes = fields.element_bytes;
  for (unsigned i = 0; i < fields.rank; ++i) num_bytes *= fields.box[i];
  return num_bytes;
}

// Calls `visit(offset in the box, address, first byte, end)` for every row of the box: the bytes of
// it that the tensor has, none where it lies outside. The end of a row of the tensor is rounded up
// to `unit` bytes.
template <typename Visit>
void by_rows(const TensorMapFields& fields, const int* coordinates, long unit, const Visit& visit) {
  const long size = fields.element_bytes;
  const long inner = fields.box[0] * size;
  const long width = ((static_cast<long>(fields.last[0]) + 1) * size + unit - 1) / unit * unit;
  const long start = coordinates[0] * size;
  const long begin = std::clamp(-start, 0l, inner);
  const long end = std::clamp(width - start, begin, inner);
  unsigned index[MAX_RANK] = {};
  const unsigned num_rows = bytes_of(fields) / static_cast<unsigned>(inner);
  for (unsigned row = 0; row < num_rows; ++row) {
    bool inside = true;
    unsigned char* address = fields.base + start + begin;
    for (unsigned i = 1; i < fields.rank; ++i) {
      const long place = static_cast<long>(coordinates[i]) + index[i];
      inside = inside && place >= 0 && place <= static_cast<long>(fields.last[i]);
      if (inside) address += place * static_cast<long>(fields.strides[i]);
    }
    visit(row * static_cast<unsigned>(inner), address, static_cast<unsigned>(begin),
          static_cast<unsigned>(inside ? end : begin));
    for (unsigned i = 1; i < fields.rank && ++index[i] == fields.box[i]; ++i) index[i] = 0;
  }
}

// The box in pieces of 16 bytes, where its swizzle puts them. `touch` is called for every run of
// bytes in global memory.
template <typename Touch>
std::vector<Piece> pieces_of(const TensorMapFields& fields, const int* coordinates, long unit,
                             unsigned shared, const Touch& touch) {
  std::vector<Piece> pieces;
  by_rows(fields, coordinates, unit, [&](unsigned row, unsigned char* run, unsigned begin, unsigned end) {
    if (begin < end) touch(run, end - begin);
    for (unsigned at = 0; at < fields.box[0] * fields.element_bytes; at += 16) {
      const unsigned first = std::clamp(begin, at, at + 16);
      const unsigned last = std::clamp(end, first, at + 16);
      pieces.push_back({swizzle(shared + row + at, fields.span), first - at, last - at,
                        run + (static_cast<long>(first) - static_cast<long>(begin))});
    }
  });
  return pieces;
}

void land(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    unsigned char* to = shared_memory() + piece.shared;
    std::memset(to, 0, 16);
    if (piece.begin < piece.end) {
      std::memcpy(to + piece.begin, piece.global, piece.end - piece.begin);
    }
  }
}

void require_target(const Call& call, Span to, unsigned alignment) {
  require_shared(call, to.begin, to.num_bytes, alignment);
  refuse_state(call, to.begin, to.num_bytes, IN_FLIGHT | IN_USE | MBARRIER);
  refuse_unfenced(call, to.begin, to.num_bytes);
}

void read_shared(Store& store) {
  if (!store.bytes.empty()) return;
  for (const Piece& piece : store.pieces) {
    const unsigned char* from = shared_memory() + piece.shared;
    store.bytes.insert(store.bytes.end(), from, from + 16);
  }
  let_go(store.from.begin, store.from.num_bytes);
  touch_shared(store.call, store.from.begin, store.from.num_bytes, READ);
}

void write_global(const Store& store) {
  const unsigned char* bytes = store.bytes.data();
  for (const Piece& piece : store.pieces) {
    const unsigned num_bytes = piece.end - piece.begin;
    if (num_bytes) {
      touch(store.call, reinterpret_cast<std::uintptr_t>(piece.global), num_bytes, WRITE, false);
      std::memcpy(piece.global, bytes + piece.begin, num_bytes);
    }
    bytes += 16;
  }
}

}  // namespace

void check_tensor_map(const void* map, Place at) {
  fields_of(called("tma_prefetch_map", at), map, 0);
}

void load_box(unsigned shared, const void* map, unsigned mbarrier, const int* coordinates,
              unsigned rank, Place at) {
  const Call call = called(rank == 4 ? "tma_load_4d" : "tma_load_5d", at);
  const TensorMapFields fields = fields_of(call, map, rank);
  require_units(call, fields, coordinates);
  MBarrier& barrier = mbarrier_at(call, mbarrier);
  const Span to{shared, bytes_of(fields)};
  require_target(call, to, 128);
  ++block->ticks[barrier.engine];
  touch_shared_as(barrier.engine, call, shared, to.num_bytes, WRITE);
  const auto pieces =
      pieces_of(fields, coordinates, 1, shared, [&](unsigned char* run, unsigned num_bytes) {
        touch_global_as(barrier.engine, call, reinterpret_cast<std::uintptr_t>(run), num_bytes,
                        READ);
      });
  begin_copy(call, barrier, to, [pieces] { land(pieces); });
}

void load_run(unsigned shared, const void* global, unsigned num_bytes, unsigned mbarrier, Place at) {
  const Call call = called("bulk_load", at);
  MBarrier& barrier = mbarrier_at(call, mbarrier);
  const auto source = reinterpret_cast<std::uintptr_t>(global);
  if (num_bytes == 0 || num_bytes % 16 || source % 16) {
    fail(call, "%u bytes from an address that is %zu past a multiple of 16; multiples of 16 go",
         num_bytes, static_cast<std::size_t>(source % 16));
  }
  const Span to{shared, num_bytes};
  require_target(call, to, 16);
  ++block->ticks[barrier.engine];
  touch_shared_as(barrier.engine, call, shared, num_bytes, WRITE);
  touch_global_as(barrier.engine, call, source, num_bytes, READ);
  begin_copy(call, barrier, to, [=] { std::memcpy(shared_memory() + shared, global, num_bytes); });
}

void store_box(const void* map, unsigned shared, const int* coordinates, unsigned rank, Place at) {
  const Call call = called(rank == 4 ? "tma_store_4d" : "tma_store_5d", at);
  const TensorMapFields fields = fields_of(call, map, rank);
  require_units(call, fields, coordinates);
  Store store{{shared, bytes_of(fields)}, {}, {}, call};
  require_shared(call, shared, store.from.num_bytes, 128);
  refuse_state(call, shared, store.from.num_bytes, IN_FLIGHT | MBARRIER);
  refuse_unwritten(call, shared, store.from.num_bytes);
  refuse_unfenced(call, shared, store.from.num_bytes);
  touch_shared(call, shared, store.from.num_bytes, READ);
  hold(shared, store.from.num_bytes);
  // A store writes whole units, past the end of a row that is none (seen on an H200).
  const auto note = [&](unsigned char* run, unsigned count) {
    touch(call, reinterpret_cast<std::uintptr_t>(run), count, WRITE, false);
  };
  store.pieces = pieces_of(fields, coordinates, 16, shared, note);
  self->open_stores.push_back(std::move(store));
}

void close_stores(Place at) {
  called("tma_commit_stores", at);
  self->store_groups.push_back(std::move(self->open_stores));
  self->open_stores.clear();
}

// Shared memory is read when that must be over, or when all must be.
void finish_stores(unsigned pending, bool reads_only, Place at) {
  called(reads_only ? "tma_wait_store_reads" : "tma_wait_stores", at);
  const std::size_t count = self->store_groups.size();
  for (std::size_t i = 0; i + pending < count; ++i) {
    for (Store& store : self->store_groups[i]) read_shared(store);
  }
  while (!reads_only && self->store_groups.size() > pending) {
    for (const Store& store : self->store_groups.front()) write_global(store);
    self->store_groups.pop_front();
  }
}

void finish_stores() {
  if (!self->open_stores.empty()) {
    fail(self->open_stores.front().call, "the thread ends before this store is committed");
  }
  for (const auto& group : self->store_groups) {
    for (const Store& store : group) {
      if (store.bytes.empty()) {
        fail(store.call, "the thread ends before this store has read shared memory");
      }
      write_global(store);
    }
  }
}

}  // namespace simulator
