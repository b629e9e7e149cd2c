// Generated from instrumented_kernels/layouts.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "kprof/abi.h"

namespace shared_layouts {

constexpr uint32_t kMaxRanks = 64;

// What went wrong on this rank. In memory of the host, which looks at it without waiting for the device.
struct Failure {
  uint64_t refused;  // input that the kernel refuses, in its own code; 0: none. The plan stays usable
  uint64_t region_and_peer;  // of the wait that took too long: region + 1 in the high half; 0: none
  uint64_t epoch_and_slot;  // epoch in the high half
  uint64_t waited_ms;  // plus 1
};
static_assert(sizeof(Failure) == 32, "Failure size");
static_assert(offsetof(Failure, refused) == 0, "Failure.refused");
static_assert(offsetof(Failure, region_and_peer) == 8, "Failure.region_and_peer");
static_assert(offsetof(Failure, epoch_and_slot) == 16, "Failure.epoch_and_slot");
static_assert(offsetof(Failure, waited_ms) == 24, "Failure.waited_ms");

// One launch of one phase, kept ready by kernel_library.py.
struct KernelLaunch {
  const void* call;  // CallArguments of the kernel
  const kprof::LaunchBuffer* buffer;
  void* stream;
  uint64_t schedule_seed;  // CPU target: the order in which threads run
  uint32_t variant;
  uint32_t phase;
  uint32_t num_blocks;
  uint32_t threads_per_block;
};
static_assert(sizeof(KernelLaunch) == 48, "KernelLaunch size");
static_assert(offsetof(KernelLaunch, call) == 0, "KernelLaunch.call");
static_assert(offsetof(KernelLaunch, buffer) == 8, "KernelLaunch.buffer");
static_assert(offsetof(KernelLaunch, stream) == 16, "KernelLaunch.stream");
static_assert(offsetof(KernelLaunch, schedule_seed) == 24, "KernelLaunch.schedule_seed");
static_assert(offsetof(KernelLaunch, variant) == 32, "KernelLaunch.variant");
static_assert(offsetof(KernelLaunch, phase) == 36, "KernelLaunch.phase");
static_assert(offsetof(KernelLaunch, num_blocks) == 40, "KernelLaunch.num_blocks");
static_assert(offsetof(KernelLaunch, threads_per_block) == 44, "KernelLaunch.threads_per_block");

}  // namespace shared_layouts
