// The number of a launch, counted on the device. So kernel arguments stay the same from call to call, and a captured
// graph can be replayed.
//
// Every launch adds kShares to the counter. Each block adds its share when it is done, and block 0 adds the remainder.
// Until the last block is done the counter is below the next multiple of kShares, so all blocks of a launch read the
// same number, however late they start. No block needs to know that it is the last, and nothing is reset.
#pragma once

#include <kprof/platform.h>

namespace launch_counter {

using namespace kprof::platform;

constexpr uint32_t kShareBits = 16;
constexpr uint64_t kShares = uint64_t{1} << kShareBits;

// The number of this launch, starting at 1. Launches that share a counter must not overlap.
KPROF_DEVICE uint32_t current(const uint64_t* counter) {
  return static_cast<uint32_t>(load_system(counter) >> kShareBits) + 1;
}

// All threads of a block call this last.
KPROF_DEVICE void finish(uint64_t* counter) {
  sync_block();  // nobody of this block reads the counter any more
  if (thread_id() == 0) add_device(counter, block_id() == 0 ? kShares - (num_blocks() - 1) : uint64_t{1});
}

}  // namespace launch_counter
