// NVIDIA. Uses PTX where CUDA C++ has no name for the scope or the clock.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define KPROF_RUNTIME(name) cuda##name
#define KPROF_NUM_PROCESSORS cudaDevAttrMultiProcessorCount
#include "gpu.h"

#define KPROF_COMPUTE_OF_TARGET "platform/compute_cuda.h"
// Code that runs for few events is one function per kernel, not inlined at every event. Inlined, although it hardly
// ever ran, it made kernels of a few us up to a third slower on an H200: more instructions to fetch, and lanes that
// diverge at the branch and never reconverge. Either all lanes of a warp reach the call together, or one lane always
// comes alone, behind `if (lane_id() == 0)`. A mixture of both in one track is slow: nvcc lets functions with atomics
// yield, and a lane that leaves its warp at the call stalls for 70 us, once per launch. Kernels with more than 61 such
// events in a track can set -DKPROF_INLINE_REFILL=1.
#ifndef KPROF_INLINE_REFILL
#define KPROF_INLINE_REFILL 0
#endif
#if KPROF_INLINE_REFILL
#define KPROF_COLD __device__ __forceinline__
#else
#define KPROF_COLD [[maybe_unused]] static __device__ __noinline__
#endif
#define KPROF_LAUNCH_BOUNDS_RESIDENT(threads, warps) __launch_bounds__(threads)
// The same, with few enough registers for `blocks` blocks per processor, on targets whose compiler can be told.
#define KPROF_BLOCKS_PER_PROCESSOR(threads, blocks) __launch_bounds__(threads, blocks)

namespace kprof::platform {

// Of a block of sm_90 and sm_100; others have less (max_shared_bytes()).
constexpr uint32_t kMaxSharedBytes = 227 << 10;

constexpr uint64_t kRealtimeTicksPerSecond = 1000000000ull;

// The memory clobber keeps the compiler from moving the measured loads and stores across the clock.
KPROF_DEVICE uint64_t realtime_ticks() {
  uint64_t ticks;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ticks)::"memory");
  return ticks;
}
KPROF_DEVICE uint64_t cycle_ticks() {
  uint64_t ticks;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(ticks)::"memory");
  return ticks;
}
// Both clocks at the same moment.
KPROF_DEVICE void read_anchor(uint64_t* realtime, uint64_t* cycles) {
  *realtime = realtime_ticks();
  *cycles = cycle_ticks();
}
KPROF_DEVICE void drain_memory() { __threadfence(); }

// Not warpSize: nvcc does not know its value at compile time, and would divide at run time.
KPROF_DEVICE constexpr uint32_t warp_width() { return 32; }
KPROF_DEVICE uint32_t warp_id() { return thread_id() / warp_width(); }
KPROF_DEVICE uint32_t lane_id() { return thread_id() % warp_width(); }
KPROF_DEVICE uint32_t hw_id() {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

KPROF_DEVICE void store_system(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
KPROF_DEVICE void store_system(uint64_t* address, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
KPROF_DEVICE uint32_t load_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
KPROF_DEVICE uint64_t load_system(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
// Two 64-bit words in one instruction. Each word is accessed atomically, the pair is not.
KPROF_DEVICE void store_system_pair(uint64_t* address, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
}
KPROF_DEVICE void load_system_pair(const uint64_t* address, uint64_t (&words)[2]) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(address)
               : "memory");
}
KPROF_DEVICE void fence_release_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
KPROF_DEVICE void fence_acquire_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
KPROF_DEVICE void order_system_stores() { fence_release_system(); }
KPROF_DEVICE void pause() {}

// Orders what thread 0 stores next after everything that the block has stored so far. Fences are cumulative: thread 0's
// fence covers every store that it has seen through the barrier, so the other threads need none.
KPROF_DEVICE void release_block_system() {
  __syncthreads();
  if (thread_id() == 0) fence_release_system();
}
// Promises that blocks have so many threads, in one row: nothing has to be computed from the size of the block then.
KPROF_DEVICE void assume_block(uint32_t threads) {
  __builtin_assume(blockDim.x == threads);
  __builtin_assume(blockDim.y == 1);
  __builtin_assume(blockDim.z == 1);
  __builtin_assume(threadIdx.x < threads);
  __builtin_assume(threadIdx.y == 0);
  __builtin_assume(threadIdx.z == 0);
}
KPROF_DEVICE void sync_warp() { __syncwarp(); }
KPROF_DEVICE uint32_t shuffle(uint32_t value, uint32_t source_lane) {
  return __shfl_sync(0xffffffffu, value, source_lane);
}
KPROF_DEVICE uint32_t broadcast(uint32_t value) { return shuffle(value, 0); }
// The lanes for which `condition` holds, one bit each. All lanes of the warp call it together.
KPROF_DEVICE uint64_t lanes_where(bool condition) { return __ballot_sync(0xffffffffu, condition); }
KPROF_DEVICE uint32_t lowest_lane(uint64_t lanes) {
  return static_cast<uint32_t>(__ffsll(static_cast<long long>(lanes))) - 1;
}
KPROF_DEVICE uint32_t add_device(uint32_t* address, uint32_t value) { return atomicAdd(address, value); }
KPROF_DEVICE uint64_t add_device(uint64_t* address, uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
KPROF_DEVICE uint32_t exchange_if_zero_device(uint32_t* address, uint32_t value) {
  return atomicCAS(address, 0u, value);
}

using Quad = uint4;
KPROF_DEVICE Quad load_quad(const void* address) { return *static_cast<const Quad*>(address); }
KPROF_DEVICE void store_quad(void* address, Quad quad) { *static_cast<Quad*>(address) = quad; }

// For the words of the arena that threads share, in PTX as global accesses. With generic accesses (ATOM instead of
// ATOMG), a modulo and a loop around the first attempt, the first claim of every kernel took 100 us on an H200 and
// later ones 0.3 us; without these three it is fast.
KPROF_DEVICE void add_global(uint32_t* address, uint32_t value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" : : "l"(address), "r"(value) : "memory");
}
KPROF_DEVICE void add_global(uint64_t* address, uint64_t value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}
// Adds one, up to 2^32 - 2. Not atom.add: there ptxas adds up the lanes of a warp first, and waits for the answer.
KPROF_DEVICE uint32_t count_global(uint32_t* address) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0xfffffffe;" : "=r"(before) : "l"(address) : "memory");
  return before;
}
KPROF_DEVICE uint32_t load_global(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
// Four words that do not change while a launch runs. Each launch begins with an empty L1 cache, so the first warp of an
// SM asks the L2 and the others find the words close by: thousands of warps that ask the L2 for one line wait in turn.
KPROF_DEVICE void load_launch_constants(const uint32_t* address, uint32_t* words) {
  asm volatile("ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(address)
               : "memory");
}
KPROF_DEVICE void store_global(uint32_t* address, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Sums have only one NaN here.
KPROF_DEVICE float with_one_nan(float value) { return value; }
KPROF_DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
KPROF_DEVICE uint16_t float_to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }

// Rare branches are functions of their own here (KPROF_COLD).
KPROF_DEVICE uint32_t opaque(uint32_t value) { return value; }

// The high word of a - b, from values that are new to the compiler: what a rare path asks is not prepared in the common
// one.
KPROF_DEVICE uint32_t high_of_difference(uint64_t a, uint64_t b) {
  asm volatile("" : "+l"(a), "+l"(b));
  return static_cast<uint32_t>((a - b) >> 32);
}

// Steps from the latest record to the next place and stores there, unless `cursor` has the bit kStoresNothing; returns
// the low word of the new `cursor`. Predicated by hand: as a branch that lane 0 alone takes, it cost an H200 24 ns of
// 60 per event. The step is in the low word alone (chunks are aligned) and goes first: nothing writes the address
// registers while the store may still read them.
KPROF_DEVICE uint32_t store_record(uintptr_t& cursor, uint64_t start_ticks, uint32_t region, uint32_t duration_ticks,
                                   uint32_t payload) {
  const uint32_t low = static_cast<uint32_t>(start_ticks);
  // Bytes 0 and 1 of the start's high word, then bytes 0 and 1 of the region.
  const uint32_t high = __byte_perm(static_cast<uint32_t>(start_ticks >> 32), region, 0x5410);
  uint32_t low_of_cursor;
  asm volatile(
      "{\n"
      "  .reg .pred stored;\n"
      "  .reg .b32 high, bit;\n"
      "  mov.b64 {%1, high}, %0;\n"
      "  and.b32 bit, %1, %6;\n"
      "  setp.eq.u32 stored, bit, 0;\n"
      "  add.u32 %1, %1, %7;\n"
      "  mov.b64 %0, {%1, high};\n"
      "  @stored st.global.v4.u32 [%0], {%2, %3, %4, %5};\n"
      "}"
      : "+l"(cursor), "=&r"(low_of_cursor)
      : "r"(low), "r"(high), "r"(duration_ticks), "r"(payload), "n"(kStoresNothing), "n"(kRecordBytes));
  return low_of_cursor;
}

// Copies of device memory see every record that was stored: the whole device shares the L2 cache.
constexpr bool kHostSeesRecords = true;

KPROF_DEVICE void store_header(char* chunk, const ChunkHeader& header) {
  *reinterpret_cast<ChunkHeader*>(chunk) = header;
}

// Stores a StateLine, unless the address has the bit kStoresNothing.
KPROF_DEVICE void store_state(uintptr_t address, uint64_t start_ticks, uint32_t region, uint32_t chunk_and_tag,
                              uint32_t payload) {
  const uint32_t low = static_cast<uint32_t>(start_ticks);
  const uint32_t high = __byte_perm(static_cast<uint32_t>(start_ticks >> 32), region, 0x5410);
  asm volatile(
      "{\n"
      "  .reg .pred stored;\n"
      "  .reg .b32 low, high;\n"
      "  mov.b64 {low, high}, %0;\n"
      "  and.b32 low, low, %5;\n"
      "  setp.eq.u32 stored, low, 0;\n"
      "  @stored st.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"l"(address),
      "r"(low), "r"(high), "r"(chunk_and_tag), "r"(payload), "n"(kStoresNothing));
}

inline bool can_launch_early() { return attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9; }
template <typename Kernel, typename... Arguments>
inline int launch_with(const LaunchOptions& options, Kernel kernel, int num_blocks, int threads_per_block,
                       cudaStream_t stream, const Arguments&... arguments) {
  // Blocks get more than 48 KiB only if their kernel has asked. A refusal shows when it is launched.
  if (options.shared_bytes > 48u << 10)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(options.shared_bytes));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads_per_block));
  config.dynamicSmemBytes = options.shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = options.is_early && can_launch_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, arguments...);
  return static_cast<int>(cudaGetLastError());
}
// The most that a block of the current device can have.
inline uint64_t realtime_ticks_per_second() { return kRealtimeTicksPerSecond; }
inline uint32_t max_shared_bytes() {
  return static_cast<uint32_t>(attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}
inline int host_warp_width() { return 32; }

inline const char* peer_memory_kind() { return "device"; }
inline int peer_allocate(void** memory, size_t bytes) {
  const cudaError_t error = cudaMalloc(memory, bytes);
  if (error != cudaSuccess) return static_cast<int>(error);
  cudaMemset(*memory, 0, bytes);
  return static_cast<int>(cudaDeviceSynchronize());
}

}  // namespace kprof::platform

// KPROF_LAUNCH with LaunchOptions.
// clang-format off
#define KPROF_LAUNCH_WITH(options, kernel, num_blocks, threads_per_block, stream, schedule_seed, ...) \
  ((void)(schedule_seed), ::kprof::platform::launch_with((options), (kernel), (num_blocks), (threads_per_block), \
                                                         static_cast<::kprof::platform::Stream>(stream), __VA_ARGS__))
// clang-format on
