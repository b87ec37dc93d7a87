// The primitives of sm_90a for host C++, under the names of templates/cuda.
#pragma once

#include <cstdint>

#include "primitives.h"

namespace simulator {

void initialise_mbarrier(unsigned address, unsigned count, Place at);
void invalidate_mbarrier(unsigned address, Place at);
void fence_initialised(Place at);
void fence_proxy(Place at);
void arrive_at_mbarrier(unsigned address, Place at);
void expect_bytes(unsigned address, unsigned num_bytes, bool arrives, Place at);
bool poll_mbarrier(unsigned address, unsigned parity, Place at);
void wait_at_mbarrier(unsigned address, unsigned parity, Place at);
void arrive_after_copies(unsigned address, Place at);

void check_tensor_map(const void* map, Place at);
void load_box(unsigned shared, const void* map, unsigned mbarrier, const int* coordinates,
              unsigned rank, Place at);
void load_run(unsigned shared, const void* global, unsigned num_bytes, unsigned mbarrier, Place at);
void store_box(const void* map, unsigned shared, const int* coordinates, unsigned rank, Place at);
void close_stores(Place at);
void finish_stores(unsigned pending, bool reads_only, Place at);

void issue_product(Format format, float* d, unsigned size, const unsigned* registers,
                   std::uint64_t a, std::uint64_t b, bool a_mn, bool b_mn, bool accumulate,
                   Place at);
void fence_products(Place at);
void close_products(Place at);
void wait_for_products(unsigned pending, Place at);

void set_max_registers(int num_registers, bool more, Place at);
bool elect(Place at);
void named_barrier(unsigned id, unsigned num_threads, bool waits, Place at);

int read_acquire(const int* address, Place at);
void write_release(int* address, int value, Place at);
void add_release(int* address, int value, Place at);

}  // namespace simulator

#define AT simulator::Place at = simulator::Place::current()

struct e4m3_t {
  static constexpr simulator::Format FORMAT = simulator::Format::e4m3;
  unsigned char bits;
};

struct e5m2_t {
  static constexpr simulator::Format FORMAT = simulator::Format::e5m2;
  unsigned char bits;
};

inline float to_float(e4m3_t x) { return simulator::widen(e4m3_t::FORMAT, x.bits); }
inline float to_float(e5m2_t x) { return simulator::widen(e5m2_t::FORMAT, x.bits); }
template <>
inline e4m3_t from_float<e4m3_t>(float x) {
  return {static_cast<unsigned char>(simulator::round_to(e4m3_t::FORMAT, x))};
}
template <>
inline e5m2_t from_float<e5m2_t>(float x) {
  return {static_cast<unsigned char>(simulator::round_to(e5m2_t::FORMAT, x))};
}
template <typename T>
unsigned short pack_fp8x2(float first, float second) {
  return static_cast<unsigned short>(from_float<T>(first).bits | from_float<T>(second).bits << 8);
}
template <typename T>
unsigned fp8x2_to_fp16x2(unsigned short pair) {
  const T first = {static_cast<unsigned char>(pair & 0xff)};
  const T second = {static_cast<unsigned char>(pair >> 8)};
  return pack<fp16_t>(to_float(first), to_float(second));
}
template <typename T>
unsigned short fp16x2_to_fp8x2(unsigned pair) {
  const fp16_t first = {static_cast<unsigned short>(pair & 0xffff)};
  const fp16_t second = {static_cast<unsigned short>(pair >> 16)};
  return pack_fp8x2<T>(to_float(first), to_float(second));
}

inline void mbarrier_init(unsigned barrier, unsigned count, AT) {
  simulator::initialise_mbarrier(barrier, count, at);
}
inline void mbarrier_invalidate(unsigned barrier, AT) {
  simulator::invalidate_mbarrier(barrier, at);
}
inline void fence_mbarrier_init(AT) { simulator::fence_initialised(at); }
inline void fence_proxy_async(AT) { simulator::fence_proxy(at); }
inline void mbarrier_arrive(unsigned barrier, AT) { simulator::arrive_at_mbarrier(barrier, at); }
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned num_bytes, AT) {
  simulator::expect_bytes(barrier, num_bytes, true, at);
}
inline void mbarrier_expect_tx(unsigned barrier, unsigned num_bytes, AT) {
  simulator::expect_bytes(barrier, num_bytes, false, at);
}
inline bool mbarrier_try_wait(unsigned barrier, unsigned parity, AT) {
  return simulator::poll_mbarrier(barrier, parity, at);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity, AT) {
  simulator::wait_at_mbarrier(barrier, parity, at);
}
inline void mbarrier_arrive_copies(unsigned barrier, AT) {
  simulator::arrive_after_copies(barrier, at);
}

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

inline unsigned long long l2_evict_first() { return 1; }
inline unsigned long long l2_evict_last() { return 2; }
inline void tma_prefetch_map(const TensorMap& map, AT) { simulator::check_tensor_map(&map, at); }
inline void tma_load_4d(unsigned shared, const TensorMap& map, unsigned barrier, int c0, int c1,
                        int c2, int c3, AT) {
  const int coordinates[] = {c0, c1, c2, c3};
  simulator::load_box(shared, &map, barrier, coordinates, 4, at);
}
inline void tma_load_5d(unsigned shared, const TensorMap& map, unsigned barrier, int c0, int c1,
                        int c2, int c3, int c4, AT) {
  const int coordinates[] = {c0, c1, c2, c3, c4};
  simulator::load_box(shared, &map, barrier, coordinates, 5, at);
}
inline void tma_load_4d_hint(unsigned shared, const TensorMap& map, unsigned barrier, int c0,
                             int c1, int c2, int c3, unsigned long long, AT) {
  tma_load_4d(shared, map, barrier, c0, c1, c2, c3, at);
}
inline void tma_load_5d_hint(unsigned shared, const TensorMap& map, unsigned barrier, int c0,
                             int c1, int c2, int c3, int c4, unsigned long long, AT) {
  tma_load_5d(shared, map, barrier, c0, c1, c2, c3, c4, at);
}
inline void bulk_load(unsigned shared, const void* global, unsigned num_bytes, unsigned barrier,
                      AT) {
  simulator::load_run(shared, global, num_bytes, barrier, at);
}
inline void tma_store_4d(const TensorMap& map, unsigned shared, int c0, int c1, int c2, int c3,
                         AT) {
  const int coordinates[] = {c0, c1, c2, c3};
  simulator::store_box(&map, shared, coordinates, 4, at);
}
inline void tma_store_5d(const TensorMap& map, unsigned shared, int c0, int c1, int c2, int c3,
                         int c4, AT) {
  const int coordinates[] = {c0, c1, c2, c3, c4};
  simulator::store_box(&map, shared, coordinates, 5, at);
}
inline void tma_commit_stores(AT) { simulator::close_stores(at); }
template <int PENDING>
void tma_wait_store_reads(AT) {
  simulator::finish_stores(PENDING, true, at);
}
template <int PENDING>
void tma_wait_stores(AT) {
  simulator::finish_stores(PENDING, false, at);
}

constexpr int K_MAJOR = 0;
constexpr int MN_MAJOR = 1;

template <typename T, int A_MAJOR = K_MAJOR, int B_MAJOR = K_MAJOR, int SIZE>
void wgmma_ss(float (&d)[SIZE], unsigned long long a, unsigned long long b, bool accumulate, AT) {
  static_assert(SIZE % 4 == 0 && SIZE <= 128, "N is a multiple of 8 up to 256");
  static_assert(sizeof(T) == 2 || A_MAJOR + B_MAJOR == K_MAJOR, "8 bits are K-major");
  simulator::issue_product(T::FORMAT, d, 2 * SIZE, nullptr, a, b, A_MAJOR, B_MAJOR, accumulate, at);
}
template <typename T, int B_MAJOR = K_MAJOR, int SIZE>
void wgmma_rs(float (&d)[SIZE], const unsigned (&a)[4], unsigned long long b, bool accumulate, AT) {
  static_assert(SIZE % 4 == 0 && SIZE <= 128, "N is a multiple of 8 up to 256");
  static_assert(sizeof(T) == 2 || B_MAJOR == K_MAJOR, "8 bits are K-major");
  simulator::issue_product(T::FORMAT, d, 2 * SIZE, a, 0, b, false, B_MAJOR, accumulate, at);
}
inline void wgmma_fence(AT) { simulator::fence_products(at); }
inline void wgmma_commit(AT) { simulator::close_products(at); }
template <int PENDING>
void wgmma_wait(AT) {
  simulator::wait_for_products(PENDING, at);
}
template <typename T, int SIZE>
void pin_registers(T (&)[SIZE]) {}

template <int REGISTERS>
void setmaxnreg_inc(AT) {
  simulator::set_max_registers(REGISTERS, true, at);
}
template <int REGISTERS>
void setmaxnreg_dec(AT) {
  simulator::set_max_registers(REGISTERS, false, at);
}
inline bool elect_one(AT) { return simulator::elect(at); }
inline void named_barrier_sync(int id, int num_threads, AT) {
  simulator::named_barrier(id, num_threads, true, at);
}
inline void named_barrier_arrive(int id, int num_threads, AT) {
  simulator::named_barrier(id, num_threads, false, at);
}

inline void load_matrix_x1(unsigned (&matrices)[1], unsigned address, AT) {
  simulator::load_matrices(matrices, 1, address, false, "load_matrix_x1", at);
}
inline void load_matrix_x1_trans(unsigned (&matrices)[1], unsigned address, AT) {
  simulator::load_matrices(matrices, 1, address, true, "load_matrix_x1_trans", at);
}
inline void load_matrix_x2(unsigned (&matrices)[2], unsigned address, AT) {
  simulator::load_matrices(matrices, 2, address, false, "load_matrix_x2", at);
}
inline void load_matrix_x2_trans(unsigned (&matrices)[2], unsigned address, AT) {
  simulator::load_matrices(matrices, 2, address, true, "load_matrix_x2_trans", at);
}
inline void store_matrix_x4(unsigned address, const unsigned (&matrices)[4], AT) {
  simulator::store_matrices(address, matrices, 4, false, "store_matrix_x4", at);
}
inline void store_matrix_x4_trans(unsigned address, const unsigned (&matrices)[4], AT) {
  simulator::store_matrices(address, matrices, 4, true, "store_matrix_x4_trans", at);
}

inline int load_acquire(const int* address, AT) { return simulator::read_acquire(address, at); }
inline void store_release(int* address, int value, AT) {
  simulator::write_release(address, value, at);
}
inline void add_release(int* address, int value, AT) { simulator::add_release(address, value, at); }
inline void fence_gpu(AT) { simulator::fence_scope("fence_gpu", at); }

// One launch at a time: the one before has ended.
inline void grid_dependency_wait() {}
inline void grid_dependency_launch() {}

#undef AT
