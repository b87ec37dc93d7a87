// CUDA's words for host C++: what an emitted kernel says, and NVRTC would know by itself.
//
// A kernel's file is compiled after this header, with PAGEGEN_SIMULATOR defined, which hides its
// PTX. Everything that a GPU does and C++ does not is declared here and in primitives.h, and done
// by the simulator in a compilation of its own.
#pragma once

#include <cmath>
#include <cstring>
#include <source_location>

namespace simulator {

using Place = std::source_location;  // where a kernel calls a primitive, by a default argument

struct Index {
  unsigned x, y, z;
};

Index thread_index();
Index block_index();
Index grid_size();
Index block_size();

void block_barrier(Place at);
int block_barrier_or(int predicate, Place at);
int block_barrier_and(int predicate, Place at);
int block_barrier_count(int predicate, Place at);
void warp_barrier(unsigned mask, Place at);
unsigned shuffle(unsigned mask, unsigned bits, unsigned from_lane, Place at);
unsigned ballot(unsigned mask, int predicate, Place at);
int compare_and_swap(int* address, int compare, int value, Place at);
int add_atomically(int* address, int value, Place at);
void fence_scope(const char* primitive, Place at);
void read_global(const void* address, unsigned num_bytes, const char* primitive, Place at);

template <typename T>
unsigned bits_of(T x) {
  static_assert(sizeof(T) == 4, "shuffles move 32 bits");
  unsigned bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

template <typename T>
T from_bits(unsigned bits) {
  T x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

}  // namespace simulator

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local  // a worker runs one block at a time
#define threadIdx (simulator::thread_index())
#define blockIdx (simulator::block_index())
#define gridDim (simulator::grid_size())
#define blockDim (simulator::block_size())

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

inline float __uint_as_float(unsigned bits) { return simulator::from_bits<float>(bits); }
inline unsigned __float_as_uint(float x) { return simulator::bits_of(x); }
inline int __float_as_int(float x) { return static_cast<int>(simulator::bits_of(x)); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

inline void __syncthreads(simulator::Place at = simulator::Place::current()) { simulator::block_barrier(at); }
inline int __syncthreads_or(int predicate, simulator::Place at = simulator::Place::current()) {
  return simulator::block_barrier_or(predicate, at);
}
inline int __syncthreads_and(int predicate, simulator::Place at = simulator::Place::current()) {
  return simulator::block_barrier_and(predicate, at);
}
inline int __syncthreads_count(int predicate, simulator::Place at = simulator::Place::current()) {
  return simulator::block_barrier_count(predicate, at);
}
inline void __syncwarp(unsigned mask = 0xffffffff, simulator::Place at = simulator::Place::current()) {
  simulator::warp_barrier(mask, at);
}

template <typename T>
T __shfl_sync(unsigned mask, T x, int lane, simulator::Place at = simulator::Place::current()) {
  return simulator::from_bits<T>(simulator::shuffle(mask, simulator::bits_of(x), lane & 31, at));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T x, int distance, simulator::Place at = simulator::Place::current()) {
  return __shfl_sync(mask, x, static_cast<int>(threadIdx.x % 32) ^ distance, at);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, simulator::Place at = simulator::Place::current()) {
  return simulator::ballot(mask, predicate, at);
}
inline int __any_sync(unsigned mask, int predicate, simulator::Place at = simulator::Place::current()) {
  return simulator::ballot(mask, predicate, at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simulator::Place at = simulator::Place::current()) {
  return simulator::ballot(mask, predicate, at) == mask;
}

inline int atomicCAS(int* address, int compare, int value, simulator::Place at = simulator::Place::current()) {
  return simulator::compare_and_swap(address, compare, value, at);
}
inline int atomicAdd(int* address, int value, simulator::Place at = simulator::Place::current()) {
  return simulator::add_atomically(address, value, at);
}
inline void __threadfence(simulator::Place at = simulator::Place::current()) { simulator::fence_scope("__threadfence", at); }
template <typename T>
T __ldcg(const T* from, simulator::Place at = simulator::Place::current()) {
  simulator::read_global(from, sizeof(T), "__ldcg", at);
  T x;
  __builtin_memcpy(&x, from, sizeof(T));
  return x;
}
