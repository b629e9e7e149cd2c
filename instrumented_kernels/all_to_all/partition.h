// How rows are distributed over warps: each source or expert separately, or all of them together.
#pragma once

#include "call.h"

namespace all_to_all {

// How rows are distributed over warps.
enum class Partition {
  kByGroup,    // every source (expert) on its own: simple, and uneven when the groups are
  kFlattened,  // over all groups together: the same for every warp, but for one row
};

// Calls `work(group, i)` for this warp's share of all rows, until it returns false. `size_of(group)` is the same in all
// warps, and each computes the prefix sum itself: that costs less than communicating it.
template <typename SizeOf, typename Work>
KPROF_DEVICE void partition_flattened(uint32_t num_groups, SizeOf size_of, Work work) {
  uint32_t idx = grid_warp();
  uint32_t begin = 0;
  for (uint32_t group = 0; group < num_groups; ++group) {
    const uint32_t end = begin + size_of(group);
    for (; idx < end; idx += num_grid_warps())
      if (!work(group, idx - begin)) return;
    begin = end;
  }
}

// Sources are assigned to blocks round robin. With fewer blocks than sources, a block serves several.
template <typename SizeOf, typename Work>
KPROF_DEVICE void partition_sources(uint32_t num_sources, SizeOf size_of, Work work) {
  const uint32_t num_served_at_once = num_blocks() < num_sources ? num_blocks() : num_sources;
  const uint32_t blocks_per_source = num_blocks() / num_served_at_once;
  const uint32_t block_of_source = block_id() / num_served_at_once;
  if (block_of_source >= blocks_per_source) return;
  const uint32_t stride = blocks_per_source * warps_per_block();
  for (uint32_t source = block_id() % num_served_at_once; source < num_sources; source += num_served_at_once)
    for (uint32_t i = block_of_source * warps_per_block() + warp_id(); i < size_of(source); i += stride)
      if (!work(source, i)) return;
}

// Calls `work(local_expert, row)` for this warp's share of the rows of all local experts.
template <Partition partition, typename Work>
KPROF_DEVICE void for_each_expert_row(const Call& call, Work work) {
  const uint32_t num_experts = experts_per_rank(call.shape);
  if constexpr (partition == Partition::kFlattened) {
    partition_flattened(
        num_experts, [&](uint32_t e) { return call.expert_counts()[e]; },
        [&](uint32_t e, uint32_t row) { return work(e, row), true; });
  } else {
    for (uint32_t e = 0; e < num_experts; ++e)
      for (uint32_t row = grid_warp(); row < call.expert_counts()[e]; row += num_grid_warps()) work(e, row);
  }
}

}  // namespace all_to_all
