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
  uint32_t has_timed_out;  // written last
  uint32_t region;  // of the wait
  uint32_t peer;  // who was waited for
  uint32_t slot;  // what of it
  uint32_t epoch;
  uint32_t waited_ms;
};
static_assert(sizeof(Failure) == 32, "Failure size");
static_assert(offsetof(Failure, refused) == 0, "Failure.refused");
static_assert(offsetof(Failure, has_timed_out) == 8, "Failure.has_timed_out");
static_assert(offsetof(Failure, region) == 12, "Failure.region");
static_assert(offsetof(Failure, peer) == 16, "Failure.peer");
static_assert(offsetof(Failure, slot) == 20, "Failure.slot");
static_assert(offsetof(Failure, epoch) == 24, "Failure.epoch");
static_assert(offsetof(Failure, waited_ms) == 28, "Failure.waited_ms");

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
