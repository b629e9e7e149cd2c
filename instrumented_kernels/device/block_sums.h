// Sums over the threads of a block, or of a team of its warps.
#pragma once

#include <kprof/compute.h>

namespace block_sums {

using namespace kprof::platform;

constexpr uint32_t kMaxWarps = 32;

// The sum over all threads of a team of `team_warps` neighbouring warps, returned in each of them. All threads of the
// block call it together. `sums` (kMaxWarps floats of shared memory) can be used once between two barriers.
KPROF_DEVICE float team_sum(float value, uint32_t team_warps, float* sums) {
  const float of_warp = warp_sum(value);
  if (team_warps == 1) return of_warp;
  if (lane_id() == 0) sums[warp_id()] = of_warp;
  sync_block();
  const uint32_t first = warp_id() / team_warps * team_warps;
  return warp_sum(lane_id() < team_warps ? sums[first + lane_id()] : 0.0f);
}

}  // namespace block_sums
