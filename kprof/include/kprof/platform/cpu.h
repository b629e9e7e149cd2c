// The CPU target: every GPU thread is a fiber (simt/launch.h), every rank an operating-system thread.
#pragma once

#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "../abi.h"
#include "../simt/launch.h"

#define KPROF_COMPUTE_OF_TARGET "platform/compute_cpu.h"
#define KPROF_DEVICE inline
#define KPROF_DEVICE_HOST inline
#define KPROF_COLD __attribute__((noinline, cold)) inline
#define __global__ static
#define __device__
#define KPROF_UNROLL(count)
#define KPROF_LAUNCH_BOUNDS(threads)
#define KPROF_LAUNCH_BOUNDS_RESIDENT(threads, warps)
// The same, with few enough registers for `blocks` blocks per processor, on targets whose compiler can be told.
#define KPROF_BLOCKS_PER_PROCESSOR(threads, blocks)
#define KPROF_SHARED(type, name, count) type(&name)[count] = ::kprof::simt::shared_array<type, count>([] {})
// Of a size that the launch gives on GPUs; here there is always the most.
#define KPROF_LARGE_SHARED(type, name, most) KPROF_SHARED(type, name, most)

#include "bits.h"

namespace kprof::platform {

constexpr uint32_t kMaxSharedBytes = 227 << 10;

// Every lane that reads the clock costs time.
constexpr bool kLanesShareClock = false;
constexpr uint64_t kRealtimeTicksPerSecond = 1000000000ull;

inline uint64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000ull + static_cast<uint64_t>(now.tv_nsec);
}
// CLOCK_MONOTONIC, distorted if a test planted a clock in this rank (see kprof_cpu_plant_clock).
inline uint64_t realtime_ticks() { return simt::planted_clock(nanoseconds(CLOCK_MONOTONIC)); }
// The time stamp counter where there is one. Like a GPU's cycle counter, it has its own rate.
inline uint64_t cycle_ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return nanoseconds(CLOCK_MONOTONIC_RAW);
#endif
}
// Both clocks at the same moment. Takes the tightest of a few attempts, because the system may preempt this thread
// between two readings.
inline void read_anchor(uint64_t* realtime, uint64_t* cycles) {
  uint64_t tightest = ~0ull;
  for (int tries = 0; tries < 4; ++tries) {
    const uint64_t before = cycle_ticks();
    const uint64_t now = realtime_ticks();
    const uint64_t width = cycle_ticks() - before;
    if (width >= tightest) continue;
    tightest = width;
    *realtime = now;
    *cycles = before + width / 2;
  }
}
inline void drain_memory() {}

inline uint32_t thread_id() { return simt::ids().thread_idx; }
inline uint32_t num_threads() { return simt::ids().num_threads; }
inline uint32_t block_id() { return simt::ids().block_idx; }
inline uint32_t num_blocks() { return simt::ids().num_blocks; }
inline uint32_t warp_width() { return simt::kWarpWidth; }
inline uint32_t warp_id() { return thread_id() / simt::kWarpWidth; }
inline uint32_t lane_id() { return thread_id() % simt::kWarpWidth; }
inline uint32_t hw_id() { return static_cast<uint32_t>(sched_getcpu()); }

template <typename T>
inline void store_system(T* address, T value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}
template <typename T>
inline T load_system(const T* address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
// Two 64-bit words. Each word is accessed atomically, the pair is not.
inline void store_system_pair(uint64_t* address, uint64_t first, uint64_t second) {
  store_system(address, first);
  store_system(address + 1, second);
}
inline void load_system_pair(const uint64_t* address, uint64_t (&words)[2]) {
  words[0] = load_system(address);
  words[1] = load_system(address + 1);
}
inline void fence_release_system() { simt::fence_release(); }
inline void fence_acquire_system() { simt::fence_acquire(); }
inline void order_system_stores() { fence_release_system(); }
inline void pause() { simt::yield(); }

inline void sync_block() { simt::sync_block(); }
inline void release_block_system() {
  fence_release_system();
  sync_block();
}
// Blocks have fewer threads here.
inline void assume_block(uint32_t) {}
inline void sync_warp() { simt::sync_warp(); }
inline uint32_t shuffle(uint32_t value, uint32_t source_lane) { return simt::shuffle(value, source_lane); }
inline uint32_t broadcast(uint32_t value) { return shuffle(value, 0); }
// The lanes for which `condition` holds, one bit each. All lanes of the warp call it together.
inline uint64_t lanes_where(bool condition) { return simt::lanes_where(condition); }
inline uint32_t lowest_lane(uint64_t lanes) { return static_cast<uint32_t>(__builtin_ctzll(lanes)); }
inline uint32_t add_device(uint32_t* address, uint32_t value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline uint64_t add_device(uint64_t* address, uint64_t value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline uint32_t exchange_if_zero_device(uint32_t* address, uint32_t value) {
  uint32_t expected = 0;
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

// may_alias: loaded from memory of any type.
using Quad = uint32_t __attribute__((vector_size(16), may_alias));
inline Quad load_quad(const void* address) { return *static_cast<const Quad*>(address); }
inline void store_quad(void* address, Quad quad) { *static_cast<Quad*>(address) = quad; }

// For the words of the arena that threads share.
inline void add_global(uint32_t* address, uint32_t value) { __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
inline void add_global(uint64_t* address, uint64_t value) { __atomic_fetch_add(address, value, __ATOMIC_RELAXED); }
inline uint32_t count_global(uint32_t* address) { return add_device(address, 1u); }
inline uint32_t load_global(const uint32_t* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }
// Four words that do not change while a launch runs.
inline void load_launch_constants(const uint32_t* address, uint32_t* words) {
  for (uint32_t i = 0; i < 4; ++i) words[i] = load_global(address + i);
}
inline void store_global(uint32_t* address, uint32_t value) { __atomic_store_n(address, value, __ATOMIC_RELAXED); }

// One NaN for all: which of two NaNs a sum keeps goes by the order of the operands, and that is the compiler's choice.
inline float with_one_nan(float value) { return value == value ? value : bits_as<float>(0x7fc00000u); }
// IEEE binary16 to binary32. The multiplication widens the exponent and normalises subnormals.
inline float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  uint32_t word = bits_as<uint32_t>(bits_as<float>(magnitude) * 0x1p112f);
  if ((bits & 0x7c00u) == 0x7c00u) word |= 0x7f800000u;
  return bits_as<float>(word | sign);
}

// Rounds to nearest even. Adding a suitable power of two makes the FPU drop the surplus bits.
inline uint16_t float_to_half(float value) {
  uint32_t word = bits_as<uint32_t>(value);
  const uint32_t sign = word & 0x80000000u;
  word ^= sign;
  uint32_t half;
  if (word >= 0x47800000u) {  // 65536 and above, infinities, NaNs
    half = word > 0x7f800000u ? 0x7e00u : 0x7c00u;
  } else if (word < 0x38800000u) {  // subnormal in binary16: align to a unit of 2^-24
    half = bits_as<uint32_t>(bits_as<float>(word) + 0.5f) - 0x3f000000u;
  } else {
    half = (word - 0x38000000u + 0x0fffu + ((word >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(half | (sign >> 16));
}

KPROF_DEVICE uint32_t opaque(uint32_t value) { return value; }
inline uint32_t at_most(uint32_t value, uint32_t limit) { return value < limit ? value : limit; }

inline uint32_t high_of_difference(uint64_t a, uint64_t b) { return static_cast<uint32_t>((a - b) >> 32); }

// Advances the cursor by one record and stores there, unless it has the bit kStoresNothing. Returns the low word of the
// new cursor.
inline uint32_t store_record(uintptr_t& cursor, uint64_t start_ticks, uint32_t region, uint32_t duration_ticks,
                             uint32_t payload) {
  cursor += kRecordBytes;
  if ((cursor & kStoresNothing) == 0) {
    const Record record{(start_ticks & kStartMask) | (static_cast<uint64_t>(region) << kStartBits), duration_ticks,
                        payload};
    memcpy(reinterpret_cast<void*>(cursor), &record, sizeof record);
  }
  return static_cast<uint32_t>(cursor);
}

// Whoever copies an arena while a kernel runs sees every record that was stored.
constexpr bool kHostSeesRecords = true;

inline void store_header(char* chunk, const ChunkHeader& header) { *reinterpret_cast<ChunkHeader*>(chunk) = header; }

// Stores a StateLine, unless the address has the bit kStoresNothing.
inline void store_state(uintptr_t address, uint64_t start_ticks, uint32_t region, uint32_t chunk_and_tag,
                        uint32_t payload) {
  if ((address & kStoresNothing) != 0) return;
  store_system_pair(reinterpret_cast<uint64_t*>(address),
                    (start_ticks & kStartMask) | (static_cast<uint64_t>(region) << kStartBits),
                    chunk_and_tag | (static_cast<uint64_t>(payload) << 32));
}

// The CPU target has no processors to spread blocks over. 0 leaves the size of the grid to the caller.
inline int num_processors() { return 0; }
// Fibers are always co-resident. The limit only stops a mistyped number from using all memory.
template <typename Kernel>
inline int max_resident_blocks(Kernel, int threads_per_block) {
  return static_cast<int>(simt::kMaxFibers) / threads_per_block;
}
inline uint64_t realtime_ticks_per_second() { return kRealtimeTicksPerSecond; }
inline uint32_t max_shared_bytes() { return kMaxSharedBytes; }
inline int host_warp_width() { return static_cast<int>(simt::kWarpWidth); }
inline const char* error_text(int error) { return simt::error_text(error); }

}  // namespace kprof::platform

// Runs the kernel to completion on the calling thread. Returns 0 or a simt error code.
#define KPROF_LAUNCH(kernel, num_blocks, threads_per_block, stream, schedule_seed, ...) \
  ((void)(stream),                                                                      \
   ::kprof::simt::launch((num_blocks), (threads_per_block), (schedule_seed), [&] { kernel(__VA_ARGS__); }))
// The same with LaunchOptions, which say nothing here.
#define KPROF_LAUNCH_WITH(options, kernel, num_blocks, threads_per_block, stream, schedule_seed, ...) \
  ((void)(options), KPROF_LAUNCH(kernel, num_blocks, threads_per_block, stream, schedule_seed, __VA_ARGS__))
