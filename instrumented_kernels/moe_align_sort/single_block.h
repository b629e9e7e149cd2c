// The first step of the ladder: one block does everything.
#pragma once

#include "aligning.h"

namespace moe_align_sort {

template <typename SizeOf>
__global__ void KPROF_BLOCKS_PER_PROCESSOR(SizeOf::kThreads, SizeOf::kBlocksPerProcessor)
    single_block(ProfiledCall call) {
  MOE_BLOCK_MEMORY(memory, SizeOf);
  assume_block(SizeOf::kThreads);
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  kprof::Span span = profile_start(track);
  const uint32_t num_ids = call.shape.num_ids;
  static_assert(SizeOf::kTileIds >= kCounters, "counters lie where tiles are sorted later");
  const Counters<SizeOf::kMost> counters(call, memory.tile);
  counters.count({0, num_ids});
  uint32_t* totals = memory.next;
  for (uint32_t expert = thread_id(); expert < call.shape.num_experts; expert += num_threads())
    totals[expert] = counters.of(expert);
  sync_block();
  span = profile_lap(track, span, R_COUNT, payload<R_COUNT>(num_ids));
  const uint32_t end = align_runs(call, totals, memory);
  span = profile_lap(track, span, R_ALIGN);
  fill(call, totals, memory.starts, end);
  sync_block();
  span = profile_lap(track, span, R_FILL, payload<R_FILL>(end - num_ids));
  for (uint32_t expert = thread_id(); expert < call.shape.num_experts; expert += num_threads())
    memory.next[expert] = memory.starts[expert];
  sync_block();
  Placer<SizeOf>(call, memory).place({0, num_ids});
  profile_stop(track, span, R_PLACE, payload<R_PLACE>(num_ids));
}

}  // namespace moe_align_sort
