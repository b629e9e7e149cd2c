// The only file that tests which target this is: HIP, CUDA or the CPU.
//
// Kernels are written once. Whatever differs between targets has one set of names here:
//
//   clock      realtime_ticks(), cycle_ticks(), read_anchor(), drain_memory(), kRealtimeTicksPerSecond,
//              kLanesShareClock
//   ids        block_id(), num_blocks(), thread_id(), num_threads(), warp_id(), lane_id(), warp_width(), hw_id()
//   signals    store_system(), load_system(), the same with _pair, fence_release_system(), fence_acquire_system(),
//              pause(), release_block_system()
//   threads    sync_block(), sync_warp(), shuffle(), broadcast(), lanes_where(), lowest_lane(), add_device(),
//              exchange_if_zero_device(), assume_block()
//   arena      add_global(), count_global(), load_global(), store_global(), all relaxed and of device scope
//   data       Quad (16 bytes that one instruction moves), half_to_float(), float_to_half() on 16-bit patterns;
//              at_most(), opaque(), store_record(), copy_bits(), bits_as()
//   host       KPROF_SHARED(type, name, count), KPROF_UNROLL(count), KPROF_LAUNCH_BOUNDS(threads),
//              KPROF_LAUNCH_BOUNDS_RESIDENT(threads, warps per processor; NVIDIA leaves that to the threads),
//              KPROF_LAUNCH(...), num_processors(), max_resident_blocks(), peer_allocate() and friends (GPUs only)
//
// Scopes: "device" is this GPU, "system" is all GPUs of the host and the CPU.
#pragma once

#include <stdint.h>

namespace kprof::platform {

// For KPROF_LAUNCH_WITH.
struct LaunchOptions {
  uint32_t shared_bytes = 0;  // for KPROF_LARGE_SHARED
  // The kernel begins while the launch before it in the stream ends. It must call await_launch_before() before it
  // touches any memory that another kernel touches. NVIDIA from sm_90 on; elsewhere it means nothing.
  bool is_early = false;
};

}  // namespace kprof::platform

#if defined(__HIP__) || defined(__HIPCC__)
#include "platform/hip.h"
#elif defined(__CUDACC__)
#include "platform/cuda.h"
#else
#include "platform/cpu.h"
#endif

#include "platform/bits.h"
