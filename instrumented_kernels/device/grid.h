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

}  // namespace grid
