// Distributed counting, cumsum, parallel placement: a slice of the ids per block, and grid-wide barriers in between.
#pragma once

#include "aligning.h"
#include "block_laps.h"

namespace moe_align_sort {

// Waits for all blocks of the grid, which are all resident. False if one of them never arrived.
KPROF_DEVICE bool sync_grid(const ProfiledCall& call, uint32_t number, uint32_t region) {
  uint32_t* arrivals = call.in_workspace<uint32_t>(call.local.arrivals) + number;
  signals::publish_block([&] { add_device(arrivals, 1u); });
  return signals::wait_block([&] {
    const auto read = [&] { return load_system(arrivals); };
    return signals::poll(read, num_blocks(), call.limits(), {region, 0, number});
  });
}

// One warp turns an expert's counts per slice into the counts of the slices before. The sum goes to `totals`.
KPROF_DEVICE void scan_slices(const Call& call, uint32_t expert) {
  uint32_t before = 0;
  for (uint32_t first = 0; first < call.shape.num_slices; first += warp_width()) {
    const uint32_t slice = first + lane_id();
    const bool is_there = slice < call.shape.num_slices;
    uint32_t* count = call.counts_of(is_there ? slice : 0) + expert;
    const uint32_t own = is_there ? *count : 0;
    const uint32_t inclusive = sum_of_lanes(own);
    if (is_there) *count = before + inclusive - own;
    before += shuffle(inclusive, warp_width() - 1);
  }
  if (lane_id() == 0) call.totals()[expert] = before;
}

// Runs before `dcp` and `chained`: zeroes barriers, sums and the failure word.
__global__ void clear(ProfiledCall call) {
  KPROF_SHARED(block_laps::Memory<1>, laps_memory, 1);
  const block_laps::BlockLaps<1> laps(laps_memory);
  laps.begin();
  let_next_launch_begin();
  auto* words = reinterpret_cast<uint32_t*>(call.workspace);
  const uint32_t num_words = static_cast<uint32_t>(call.local.end_of_zeros.bytes() / sizeof(uint32_t));
  for (uint32_t i = grid::grid_thread(); i < num_words; i += grid::num_grid_threads()) words[i] = 0;
  laps.lap(0, R_CLEAR);
  laps.open(call);
  laps.record();
}

template <typename SizeOf>
__global__ void KPROF_BLOCKS_PER_PROCESSOR(SizeOf::kThreads, SizeOf::kBlocksPerProcessor) dcp(ProfiledCall call) {
  MOE_BLOCK_MEMORY(memory, SizeOf);
  assume_block(SizeOf::kThreads);
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  kprof::Span span = profile_start(track);
  const uint32_t num_experts = call.shape.num_experts;
  const Range slice = call.slice(block_id());
  static_assert(SizeOf::kTileIds >= kCounters, "counters lie where tiles are sorted later");
  const Counters<SizeOf::kMost> counters(call, memory.tile);
  counters.count(slice);
  uint32_t* counts = call.counts_of(block_id());
  for (uint32_t expert = thread_id(); expert < num_experts; expert += num_threads())
    counts[expert] = counters.of(expert);
  span = profile_lap(track, span, R_COUNT, payload<R_COUNT>(slice.size()));
  if (!sync_grid(call, 0, R_GATHER)) return;
  span = profile_lap(track, span, R_GATHER);
  for (uint32_t expert = grid::grid_warp(); expert < num_experts; expert += grid::num_grid_warps())
    scan_slices(call, expert);
  span = profile_lap(track, span, R_SCAN);
  if (!sync_grid(call, 1, R_SCANNED)) return;
  span = profile_lap(track, span, R_SCANNED);
  const uint32_t end = align_runs(call, call.totals(), memory);
  for (uint32_t expert = thread_id(); expert < num_experts; expert += num_threads())
    memory.next[expert] = memory.starts[expert] + counts[expert];
  span = profile_lap(track, span, R_ALIGN);
  fill(call, call.totals(), memory.starts, end);
  sync_block();
  span = profile_lap(track, span, R_FILL, payload<R_FILL>(end - call.shape.num_ids));
  Placer<SizeOf>(call, memory).place(slice);
  profile_stop(track, span, R_PLACE, payload<R_PLACE>(slice.size()));
}

}  // namespace moe_align_sort
