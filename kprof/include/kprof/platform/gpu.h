// What NVIDIA and AMD have in common, for cuda.h and hip.h. Their runtimes name most things alike: KPROF_RUNTIME(Free)
// is cudaFree or hipFree.
#pragma once

#include <stddef.h>

#include "../abi.h"

#define KPROF_DEVICE __device__ __forceinline__
#define KPROF_DEVICE_HOST __host__ __device__ __forceinline__
// On a kernel: the compiler may use the registers that larger blocks would need.
#define KPROF_LAUNCH_BOUNDS(threads) __launch_bounds__(threads)
#define KPROF_SHARED(type, name, count) __shared__ type name[count]
// Of a size that the launch gives (KPROF_LAUNCH_WITH), up to kMaxSharedBytes; one per kernel. `most` is for the CPU.
// Aligned as matrix units want it.
#define KPROF_LARGE_SHARED(type, name, most)                                           \
  extern __shared__ __attribute__((aligned(1024))) unsigned char kprof_large_shared[]; \
  type* const name = reinterpret_cast<type*>(kprof_large_shared)
#define KPROF_PRAGMA(text) _Pragma(#text)
#define KPROF_UNROLL(count) KPROF_PRAGMA(unroll count)

#include "bits.h"

namespace kprof::platform {

// Lanes run in lockstep, so a clock reading costs the warp the same however many lanes take it.
constexpr bool kLanesShareClock = true;

KPROF_DEVICE uint32_t thread_id() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
KPROF_DEVICE uint32_t num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
KPROF_DEVICE uint32_t block_id() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
KPROF_DEVICE uint32_t num_blocks() { return gridDim.x * gridDim.y * gridDim.z; }

KPROF_DEVICE void sync_block() { __syncthreads(); }

KPROF_DEVICE uint32_t at_most(uint32_t value, uint32_t limit) { return value < limit ? value : limit; }

using Stream = KPROF_RUNTIME(Stream_t);

// An attribute of the current device; `unknown` if it cannot be asked.
template <typename Attribute>
inline int attribute_of_device(Attribute attribute, int unknown = 0) {
  int device = 0, value = 0;
  if (KPROF_RUNTIME(GetDevice)(&device) != KPROF_RUNTIME(Success)) return unknown;
  if (KPROF_RUNTIME(DeviceGetAttribute)(&value, attribute, device) != KPROF_RUNTIME(Success)) return unknown;
  return value;
}
// SMs of the current device (CUs on AMD).
inline int num_processors() { return attribute_of_device(KPROF_NUM_PROCESSORS); }
// Blocks of `kernel` that the whole device can hold at once: blocks that wait for each other must all be resident.
template <typename Kernel>
inline int max_resident_blocks(Kernel kernel, int threads_per_block) {
  int blocks = 0;
  const auto error = KPROF_RUNTIME(OccupancyMaxActiveBlocksPerMultiprocessor)(
      &blocks, reinterpret_cast<const void*>(kernel), threads_per_block, 0);
  return error == KPROF_RUNTIME(Success) ? num_processors() * blocks : 0;
}
inline int last_launch_error() { return static_cast<int>(KPROF_RUNTIME(GetLastError)()); }
inline const char* error_text(int error) {
  return KPROF_RUNTIME(GetErrorString)(static_cast<KPROF_RUNTIME(Error_t)>(error));
}

// ---- memory that all GPUs of the host can write: one allocation per rank, which the others open through a handle

using PeerHandle = KPROF_RUNTIME(IpcMemHandle_t);
constexpr int kPeerHandleBytes = sizeof(PeerHandle);

inline int peer_free(void* memory) { return static_cast<int>(KPROF_RUNTIME(Free)(memory)); }
inline int peer_export(void* handle, void* memory) {
  return static_cast<int>(KPROF_RUNTIME(IpcGetMemHandle)(static_cast<PeerHandle*>(handle), memory));
}
inline int peer_import(void** memory, const void* handle) {
  return static_cast<int>(KPROF_RUNTIME(IpcOpenMemHandle)(memory, *static_cast<const PeerHandle*>(handle),
                                                          KPROF_RUNTIME(IpcMemLazyEnablePeerAccess)));
}
inline int peer_close(void* memory) { return static_cast<int>(KPROF_RUNTIME(IpcCloseMemHandle)(memory)); }

}  // namespace kprof::platform

// Launch on a stream; `schedule_seed` matters on the CPU only. Returns 0 or the runtime's error code.
// clang-format off: it takes the chevrons apart.
#define KPROF_LAUNCH(kernel, num_blocks, threads_per_block, stream, schedule_seed, ...)                           \
  ((void)(schedule_seed),                                                                                         \
   (kernel)<<<(num_blocks), (threads_per_block), 0, static_cast<::kprof::platform::Stream>(stream)>>>(__VA_ARGS__), \
   ::kprof::platform::last_launch_error())
// clang-format on
