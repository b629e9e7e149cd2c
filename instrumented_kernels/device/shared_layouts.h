// What all kernels and Python share (instrumented_kernels/layouts.py reads the declarations).
#pragma once

#include <kprof/abi.h>

namespace shared_layouts {

constexpr uint32_t kMaxRanks = 64;

// What went wrong on this rank. In memory of the host, which looks at it without waiting for the device.
struct Failure {
  uint64_t refused;          // input that the kernel refuses, in its own code; 0: none. The plan stays usable
  uint64_t region_and_peer;  // of the wait that took too long: region + 1 in the high half; 0: none
  uint64_t epoch_and_slot;   // epoch in the high half
  uint64_t waited_ms;        // plus 1
};

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

}  // namespace shared_layouts
