// The starts of the experts' padded runs, and the padding.
#pragma once

#include "placing.h"

namespace moe_align_sort {

KPROF_DEVICE uint32_t padded(const Call& call, uint32_t num_ids) {
  return (num_ids + call.block_size - 1) / call.block_size * call.block_size;
}

// Computes `starts`, where each expert's run begins in sorted_ids, from `totals`, the ids of each expert. Returns the
// end of the last run. All threads of a block call it together.
KPROF_DEVICE uint32_t align_runs(const Call& call, const uint32_t* totals, const BlockMemory& memory) {
  scan_experts(
      call.shape.num_experts, memory, [&](uint32_t expert) { return padded(call, totals[expert]); },
      [&](uint32_t expert, uint32_t, uint32_t before) { memory.starts[expert] = before; });
  const uint32_t end = memory.sums[32];
  sync_block();
  return end;
}

// The last expert whose run begins at or before `place`.
KPROF_DEVICE uint32_t expert_at(const uint32_t* starts, uint32_t num_experts, uint32_t place) {
  uint32_t low = 0, high = num_experts;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (starts[middle] <= place ? low : high) = middle;
  }
  return low;
}

// Writes all outputs that are not ids. The blocks of the grid share the work.
KPROF_DEVICE void fill(const Call& call, const uint32_t* totals, const uint32_t* starts, uint32_t end) {
  const uint32_t num_experts = call.shape.num_experts;
  const auto pad = static_cast<int32_t>(call.shape.num_ids);
  for (uint32_t expert = grid::grid_warp(); expert < num_experts; expert += grid::num_grid_warps()) {
    const uint32_t num_ids = totals[expert];
    const uint32_t run_end = starts[expert] + padded(call, num_ids);
    for (uint32_t i = starts[expert] + num_ids + lane_id(); i < run_end; i += warp_width()) call.sorted_ids[i] = pad;
  }
  for (uint32_t i = end + grid::grid_thread(); i < call.num_sorted; i += grid::num_grid_threads())
    call.sorted_ids[i] = pad;
  const uint32_t num_blocks = end / call.block_size;
  for (uint32_t i = grid::grid_thread(); i < call.num_block_experts; i += grid::num_grid_threads())
    call.block_experts[i] =
        i < num_blocks ? static_cast<int32_t>(expert_at(starts, num_experts, i * call.block_size)) : -1;
  if (grid::grid_thread() == 0) call.num_padded[0] = static_cast<int32_t>(end);
}

}  // namespace moe_align_sort
