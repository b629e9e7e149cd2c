// AMD: gfx9 (MI200, MI300, MI350).
#pragma once

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__)
#error "kprof is for gfx9 (MI200, MI300, MI350): other AMD GPUs have another clock and waves of 32 lanes"
#endif

#include <hip/hip_runtime.h>

#define KPROF_RUNTIME(name) hip##name
#define KPROF_NUM_PROCESSORS hipDeviceAttributeMultiprocessorCount
#include "gpu.h"

#define KPROF_COMPUTE_OF_TARGET "platform/compute_hip.h"
// Inlined on purpose: a single call in a kernel costs scratch memory and the registers of the calling convention.
#define KPROF_COLD __device__ __forceinline__
// A CU has four SIMDs, and the second number counts waves of one.
#define KPROF_LAUNCH_BOUNDS_RESIDENT(threads, warps) __launch_bounds__(threads, (warps) / 4)
// The same, with few enough registers for `blocks` blocks per processor, on targets whose compiler can be told.
#define KPROF_BLOCKS_PER_PROCESSOR(threads, blocks) __launch_bounds__(threads)

namespace kprof::platform {

// Of a block, in all of gfx9; gfx950 has more.
constexpr uint32_t kMaxSharedBytes = 64 << 10;

// MI200 and before count slower. For device code: the host asks the device, see realtime_ticks_per_second().
#if defined(__gfx90a__) || defined(__gfx908__)
constexpr uint64_t kRealtimeTicksPerSecond = 25000000ull;
#else
constexpr uint64_t kRealtimeTicksPerSecond = 100000000ull;
#endif

// The builtins are ordered against memory operations, and the compiler waits for the result as late as it can. Inline
// assembly would have to wait at once.
KPROF_DEVICE uint64_t realtime_ticks() {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_s_memrealtime();
#else
  return 0;
#endif
}
KPROF_DEVICE uint64_t cycle_ticks() { return __builtin_readcyclecounter(); }
// Both clocks at the same moment.
KPROF_DEVICE void read_anchor(uint64_t* realtime, uint64_t* cycles) {
  *realtime = realtime_ticks();
  *cycles = cycle_ticks();
}
// vmcnt counts vector memory operations; lgkmcnt counts LDS and scalar loads.
KPROF_DEVICE void drain_memory() {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("s_waitcnt vmcnt(0) lgkmcnt(0)" ::: "memory");
#endif
}

// All of gfx9. Not __builtin_amdgcn_wavefrontsize(): clang 19 does not know its value, and would divide at run time.
KPROF_DEVICE constexpr uint32_t warp_width() { return 64; }
// readfirstlane tells the compiler that all lanes have the same value, so that it keeps loops over warps in scalar
// registers.
KPROF_DEVICE uint32_t warp_id() {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(thread_id() / warp_width());
#else
  return 0;
#endif
}
KPROF_DEVICE uint32_t lane_id() { return thread_id() % warp_width(); }

// The operand of s_getreg for bits `first` to `first + count - 1` of a hardware register.
constexpr int register_bits(int number, int first, int count) { return number | first << 6 | (count - 1) << 11; }

// The compute unit that this wave runs on: CU in bits 0 to 3, SH in bit 4, SE in bits 5 to 7, and on MI300 and later
// the XCC (chiplet) from bit 16 on. These are bits 8 to 15 of HW_ID; its lower bits (the wave's slot, SIMD and pipe)
// differ between waves of one compute unit.
KPROF_DEVICE uint32_t hw_id() {
#if defined(__GFX9__)
  constexpr int kHwId = 4, kXccId = 20;
  const uint32_t cu = __builtin_amdgcn_s_getreg(register_bits(kHwId, 8, 8));
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
  return cu | __builtin_amdgcn_s_getreg(register_bits(kXccId, 0, 4)) << 16;
#else
  return cu;
#endif
#else
  return 0;
#endif
}

template <typename Pointer, typename T>
KPROF_DEVICE void store_system(Pointer address, T value) {
  __hip_atomic_store(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
template <typename T>
KPROF_DEVICE T load_system(const T* address) {
  return __hip_atomic_load(address, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
// Two 64-bit words. Each word is accessed atomically, the pair is not.
KPROF_DEVICE void store_system_pair(uint64_t* address, uint64_t first, uint64_t second) {
  store_system(address, first);
  store_system(address + 1, second);
}
KPROF_DEVICE void load_system_pair(const uint64_t* address, uint64_t (&words)[2]) {
  words[0] = load_system(address);
  words[1] = load_system(address + 1);
}
// The empty name is the system scope. On gfx942 the release is `buffer_wbl2 sc0 sc1` and `s_waitcnt vmcnt(0)`: the L2
// of the XCC is written back. For stores to uncached memory the wait alone would do, as they are not in the L2. It is
// not enough for a release: what a rank wrote to its own memory in plain stores (a tensor that a peer reads) is in the
// L2, and so is fine-grained memory, which is taken where the runtime has no uncached.
KPROF_DEVICE void fence_release_system() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, ""); }
KPROF_DEVICE void fence_acquire_system() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
// What this thread stored at system scope has arrived there before it stores more. No release: that would write back
// all of the L2 cache, and these stores are not in it.
KPROF_DEVICE void order_system_stores() { drain_memory(); }
KPROF_DEVICE void pause() { __builtin_amdgcn_s_sleep(1); }

// Orders what thread 0 stores next after everything that the block has stored so far. The barrier does not wait for
// stores, so every wave waits for its own.
KPROF_DEVICE void release_block_system() {
  fence_release_system();
  __syncthreads();
}
// ptxas is who needs it.
KPROF_DEVICE void assume_block(uint32_t) {}
// Lanes of a wave run in lockstep. This only stops the compiler from moving memory operations across.
KPROF_DEVICE void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
KPROF_DEVICE uint32_t shuffle(uint32_t value, uint32_t source_lane) {
  return static_cast<uint32_t>(
      __builtin_amdgcn_ds_bpermute(static_cast<int>(source_lane << 2), static_cast<int>(value)));
}
// Lane 0's value in all lanes, in a scalar register: branches on it are taken once per wave.
KPROF_DEVICE uint32_t broadcast(uint32_t value) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_readfirstlane(value);
#else
  return value;
#endif
}
// The lanes for which `condition` holds, one bit each. All lanes of the warp call it together.
KPROF_DEVICE uint64_t lanes_where(bool condition) { return __ballot(condition); }
KPROF_DEVICE uint32_t lowest_lane(uint64_t lanes) { return static_cast<uint32_t>(__builtin_ctzll(lanes)); }
KPROF_DEVICE uint32_t add_device(uint32_t* address, uint32_t value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
KPROF_DEVICE uint64_t add_device(uint64_t* address, uint64_t value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
KPROF_DEVICE uint32_t exchange_if_zero_device(uint32_t* address, uint32_t value) {
  uint32_t expected = 0;
  __hip_atomic_compare_exchange_strong(address, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

// A vector, not a struct, so that conditional copies stay in registers.
using Quad = uint32_t __attribute__((ext_vector_type(4)));
// Told that the address is global memory: a flat access also counts as one of LDS, and clang 19 then waits for every
// store before the next.
using GlobalQuad = __attribute__((address_space(1))) Quad;
KPROF_DEVICE Quad load_quad(const void* address) { return *(const GlobalQuad*)(address); }
KPROF_DEVICE void store_quad(void* address, Quad quad) { *(GlobalQuad*)(address) = quad; }

// For the words of the arena that threads share.
KPROF_DEVICE void add_global(uint32_t* address, uint32_t value) {
  __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
KPROF_DEVICE void add_global(uint64_t* address, uint64_t value) {
  __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
KPROF_DEVICE uint32_t count_global(uint32_t* address) { return add_device(address, 1u); }
KPROF_DEVICE uint32_t load_global(const uint32_t* address) {
  return __hip_atomic_load(address, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Four words that do not change while a launch runs. From the L2: not every dispatch empties the caches before it.
KPROF_DEVICE void load_launch_constants(const uint32_t* address, uint32_t* words) {
  const auto* pairs = reinterpret_cast<const uint64_t*>(address);
  const uint64_t low = __hip_atomic_load(pairs, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  const uint64_t high = __hip_atomic_load(pairs + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  words[0] = static_cast<uint32_t>(low);
  words[1] = static_cast<uint32_t>(low >> 32);
  words[2] = static_cast<uint32_t>(high);
  words[3] = static_cast<uint32_t>(high >> 32);
}
KPROF_DEVICE void store_global(uint32_t* address, uint32_t value) {
  __hip_atomic_store(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// One NaN for all: which of two NaNs a sum keeps goes by the order of the operands, and that is the compiler's choice.
KPROF_DEVICE float with_one_nan(float value) { return value == value ? value : bits_as<float>(0x7fc00000u); }
KPROF_DEVICE float half_to_float(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }
KPROF_DEVICE uint16_t float_to_half(float value) { return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value)); }

// The same value, hidden from the compiler: what is computed from it stays in the branch where it is written. Otherwise
// a rare branch would take registers in all of the kernel.
KPROF_DEVICE uint32_t opaque(uint32_t value) {
  asm volatile("" : "+v"(value));
  return value;
}

KPROF_DEVICE uint32_t high_of_difference(uint64_t a, uint64_t b) { return static_cast<uint32_t>((a - b) >> 32); }

// Advances the cursor by one record and stores there, unless it has the bit kStoresNothing. Returns the low word of the
// new cursor. Only that word changes, because chunks are aligned.
KPROF_DEVICE uint32_t store_record(uintptr_t& cursor, uint64_t start_ticks, uint32_t region, uint32_t duration_ticks,
                                   uint32_t payload) {
  cursor = (cursor & ~uintptr_t{0xffffffffu}) | (static_cast<uint32_t>(cursor) + kRecordBytes);
  if ((cursor & kStoresNothing) == 0) {
    // After a refill the compiler no longer sees that the pointer is to global memory, and a flat store would also use
    // the LDS counter.
    using Words = uint64_t __attribute__((ext_vector_type(2)));
    using GlobalWords = __attribute__((address_space(1))) Words;
    *(GlobalWords*)(cursor) = Words{(start_ticks & kStartMask) | (static_cast<uint64_t>(region) << kStartBits),
                                    duration_ticks | (static_cast<uint64_t>(payload) << 32)};
  }
  return static_cast<uint32_t>(cursor);
}

// Records stay in the L2 cache of a die until the launch ends.
constexpr bool kHostSeesRecords = false;

// Past all caches, unlike records: while a kernel hangs, headers say which tracks have begun, and whose the announced
// spans are. A plain store would stay in the L2 cache of a die until the launch ends.
KPROF_DEVICE void store_header(char* chunk, const ChunkHeader& header) {
  struct Words {
    uint64_t of[sizeof(ChunkHeader) / 8];
  };
  using GlobalWord = __attribute__((address_space(1))) uint64_t;
  const Words words = bits_as<Words>(header);
  KPROF_UNROLL(8)
  for (uint32_t i = 0; i < sizeof(ChunkHeader) / 8; ++i) store_system((GlobalWord*)(chunk) + i, words.of[i]);
}

// Stores a StateLine past all caches, unless the address has the bit kStoresNothing.
KPROF_DEVICE void store_state(uintptr_t address, uint64_t start_ticks, uint32_t region, uint32_t chunk_and_tag,
                              uint32_t payload) {
  if ((address & kStoresNothing) != 0) return;
  store_system_pair(reinterpret_cast<uint64_t*>(address),
                    (start_ticks & kStartMask) | (static_cast<uint64_t>(region) << kStartBits),
                    chunk_and_tag | (static_cast<uint64_t>(payload) << 32));
}

inline uint32_t max_shared_bytes() { return kMaxSharedBytes; }
// What the device says, in kHz, from ROCm 6 on; before, what MI300 has.
inline uint64_t realtime_ticks_per_second() {
#if HIP_VERSION >= 60000000
  const int khz = attribute_of_device(hipDeviceAttributeWallClockRate);
  if (khz > 0) return static_cast<uint64_t>(khz) * 1000;
#endif
  return kRealtimeTicksPerSecond;
}
// 64 on gfx9 (MI200, MI300, MI350), and if the device cannot be asked.
inline int host_warp_width() { return attribute_of_device(hipDeviceAttributeWarpSize, 64); }

// What a peer writes must become visible while a kernel runs, so it must not stay in a cache. RCCL allocates the
// buffers that peers write as uncached if HIP has the flag (5.7 and later), else as fine-grained (src/transport/p2p.cc,
// HIP_UNCACHED_MEMORY); on MI300 fine-grained memory is cached. rocSHMEM takes fine-grained memory unless it is built
// with DEBUG_HIPMALLOC_FINEGRAIN_DEFAULT_UNCACHED (src/memory/hip_allocator.hpp).
#ifdef hipDeviceMallocUncached
constexpr unsigned kPeerMemoryKinds[] = {hipDeviceMallocUncached, hipDeviceMallocFinegrained};
#else
constexpr unsigned kPeerMemoryKinds[] = {0x3,
                                         hipDeviceMallocFinegrained};  // the flag's value: a newer runtime knows it
#endif

// The kind of memory that peer_allocate took last.
inline const char*& peer_memory_kind() {
  static const char* kind = "";
  return kind;
}

// Uses the first kind of memory that the runtime can allocate and export to other processes.
inline int peer_allocate(void** memory, size_t bytes) {
  hipError_t error = hipErrorOutOfMemory;
  for (const unsigned kind : kPeerMemoryKinds) {
    error = hipExtMallocWithFlags(memory, bytes, kind);
    if (error != hipSuccess) continue;
    hipIpcMemHandle_t handle;
    error = static_cast<hipError_t>(peer_export(&handle, *memory));
    if (error == hipSuccess) {
      peer_memory_kind() = kind == hipDeviceMallocFinegrained ? "fine-grained" : "uncached";
      break;
    }
    peer_free(*memory);
  }
  (void)hipGetLastError();  // what was refused is no error of a later launch
  if (error != hipSuccess) return static_cast<int>(error);
  const hipError_t cleared = hipMemset(*memory, 0, bytes);
  return static_cast<int>(cleared != hipSuccess ? cleared : hipDeviceSynchronize());
}

}  // namespace kprof::platform

// KPROF_LAUNCH with LaunchOptions.
// clang-format off
#define KPROF_LAUNCH_WITH(options, kernel, num_blocks, threads_per_block, stream, schedule_seed, ...) \
  ((void)(schedule_seed),                                                                             \
   (kernel)<<<(num_blocks), (threads_per_block), (options).shared_bytes,                              \
              static_cast<::kprof::platform::Stream>(stream)>>>(__VA_ARGS__),                         \
   ::kprof::platform::last_launch_error())
// clang-format on
