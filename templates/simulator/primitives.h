// The primitives of templates/cuda, for host C++: what stands between #ifndef PAGEGEN_SIMULATOR and
// #endif in an emitted kernel, under the same names.
#pragma once

#include "words.h"

namespace simulator {

enum class Format { bf16, fp16, e4m3, e5m2 };

float widen(Format format, unsigned short bits);
// The nearest value, ties to even; beyond the largest: infinity in 16 bits, the largest in 8.
unsigned short round_to(Format format, float x);

void load_matrices(unsigned* matrices, unsigned num, unsigned address, bool transposed,
                   const char* primitive, Place at);
void store_matrices(unsigned address, const unsigned* matrices, unsigned num, bool transposed,
                    const char* primitive, Place at);
unsigned transpose(unsigned matrix, Place at);
void multiply(Format format, float* d, const unsigned* a, unsigned b0, unsigned b1, Place at);

unsigned offset_in_shared(const void* pointer, Place at);
void start_copy(unsigned shared, const void* global, unsigned num_bytes, bool visible, Place at);
void close_copies(Place at);
void finish_copies(unsigned pending, Place at);
void finish_all_copies(Place at);

void load_vector(void* to, const void* from, Place at);
void store_vector(void* to, const void* from, Place at);
int add_release_acquire(int* counter, int value, Place at);

}  // namespace simulator

struct bf16_t {
  static constexpr simulator::Format FORMAT = simulator::Format::bf16;
  unsigned short bits;
};

struct fp16_t {
  static constexpr simulator::Format FORMAT = simulator::Format::fp16;
  unsigned short bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16_t x) { return simulator::widen(bf16_t::FORMAT, x.bits); }
inline float to_float(fp16_t x) { return simulator::widen(fp16_t::FORMAT, x.bits); }

template <typename T>
T from_float(float x) {
  return {simulator::round_to(T::FORMAT, x)};
}
template <>
inline float from_float<float>(float x) {
  return x;
}

template <typename T>
unsigned pack(float first, float second) {
  return from_float<T>(first).bits | static_cast<unsigned>(from_float<T>(second).bits) << 16;
}

inline float exp2_fast(float x) { return std::exp2(x); }
inline float log2_fast(float x) { return std::log2(x); }

inline void load_matrix_x4(unsigned (&matrices)[4], unsigned address, simulator::Place at = simulator::Place::current()) {
  simulator::load_matrices(matrices, 4, address, false, "load_matrix_x4", at);
}
inline void load_matrix_x4_trans(unsigned (&matrices)[4], unsigned address,
                                 simulator::Place at = simulator::Place::current()) {
  simulator::load_matrices(matrices, 4, address, true, "load_matrix_x4_trans", at);
}
inline unsigned transpose_matrix(unsigned matrix, simulator::Place at = simulator::Place::current()) {
  return simulator::transpose(matrix, at);
}
template <typename T>
void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
         simulator::Place at = simulator::Place::current()) {
  simulator::multiply(T::FORMAT, d, a, b0, b1, at);
}

inline unsigned shared_address(const void* pointer, simulator::Place at = simulator::Place::current()) {
  return simulator::offset_in_shared(pointer, at);
}
inline void copy_async_16(unsigned shared, const void* global, bool visible,
                          simulator::Place at = simulator::Place::current()) {
  simulator::start_copy(shared, global, 16, visible, at);
}
inline void copy_async_4(unsigned shared, const void* global, bool visible,
                         simulator::Place at = simulator::Place::current()) {
  simulator::start_copy(shared, global, 4, visible, at);
}
inline void commit_copies(simulator::Place at = simulator::Place::current()) { simulator::close_copies(at); }
template <int PENDING>
void wait_copies(simulator::Place at = simulator::Place::current()) {
  simulator::finish_copies(PENDING, at);
}
inline void wait_all_copies(simulator::Place at = simulator::Place::current()) { simulator::finish_all_copies(at); }

inline uint4 load_16(const void* from, simulator::Place at = simulator::Place::current()) {
  uint4 vector;
  simulator::load_vector(&vector, from, at);
  return vector;
}
inline void store_16(void* to, uint4 vector, simulator::Place at = simulator::Place::current()) {
  simulator::store_vector(to, &vector, at);
}
inline int arrive(int* counter, simulator::Place at = simulator::Place::current()) {
  return simulator::add_release_acquire(counter, 1, at);
}
