// Indices of threads and warps in the whole grid.
#pragma once

#include <kprof/platform.h>

namespace grid {

using namespace kprof::platform;

KPROF_DEVICE uint32_t warps_per_block() { return num_threads() / warp_width(); }
// Numbered across blocks first, so that work for a few warps still uses many processors.
KPROF_DEVICE uint32_t grid_warp() { return warp_id() * num_blocks() + block_id(); }
KPROF_DEVICE uint32_t num_grid_warps() { return num_blocks() * warps_per_block(); }

KPROF_DEVICE uint32_t grid_thread() { return block_id() * num_threads() + thread_id(); }
KPROF_DEVICE uint32_t num_grid_threads() { return num_blocks() * num_threads(); }

struct Range {
  uint32_t begin;
  uint32_t end;

  KPROF_DEVICE uint32_t size() const { return end - begin; }
};

// The part of `num` items that this block handles. The last block's ends with the last item.
KPROF_DEVICE Range share_of_block(uint32_t num) {
  const uint64_t total = num;
  return {static_cast<uint32_t>(total * block_id() / num_blocks()),
          static_cast<uint32_t>(total * (block_id() + 1) / num_blocks())};
}

}  // namespace grid
