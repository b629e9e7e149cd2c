// The number of a launch, counted on the device: kernel arguments stay the same from call to call, so that a captured
// graph can be replayed.
//
// Every launch adds kShares to the counter, dealt out over its blocks: each adds its own when it is done, block 0 what
// is left. Until the last block is done the counter stands below the next multiple, so all blocks of a launch read the
// same number, however late they start, and nobody has to be the last or to reset anything.
#pragma once

#include <kprof/platform.h>

namespace launch_counter {

using namespace kprof::platform;

constexpr uint32_t kShareBits = 16;
constexpr uint64_t kShares = uint64_t{1} << kShareBits;

// The number of this launch, from 1. Launches that share a counter must not overlap.
KPROF_DEVICE uint32_t current(const uint64_t* counter) {
  return static_cast<uint32_t>(load_system(counter) >> kShareBits) + 1;
}

// Called by all threads of a block as the last thing they do.
KPROF_DEVICE void finish(uint64_t* counter) {
  sync_block();  // nobody of this block reads the counter any more
  if (thread_id() == 0) add_device(counter, block_id() == 0 ? kShares - (num_blocks() - 1) : uint64_t{1});
}

}  // namespace launch_counter
