// One launch counts, one places. A block sums the counts of the slices before it by looking back. The first launch has
// stored every slice's counts, and a block that knows the sum up to itself stores it for the blocks after it. Nobody
// waits.
//
// Both launches are early: they begin while the one before ends, and do until `await_launch_before()` what needs
// nothing of it. They may read the ids there: `clear`, the first launch, is not early, so the ids are complete.
#pragma once

#include "aligning.h"
#include "block_laps.h"

namespace moe_align_sort {

// The highest bit of a count: the count includes all slices before.
constexpr uint32_t kIsSum = 1u << 31;
// Slices that a thread reads together, because each alone would cost the memory latency.
constexpr uint32_t kLookAhead = 16;

template <typename SizeOf>
__global__ void KPROF_BLOCKS_PER_PROCESSOR(SizeOf::kThreads, SizeOf::kBlocksPerProcessor) count(ProfiledCall call) {
  KPROF_SHARED(uint32_t, memory, kCounters);
  KPROF_SHARED(block_laps::Memory<1>, laps_memory, 1);
  assume_block(SizeOf::kThreads);
  const block_laps::BlockLaps<1> laps(laps_memory);
  laps.begin();
  let_next_launch_begin();
  const Range slice = call.slice(block_id());
  const Counters<SizeOf::kMost> counters(call, memory);
  counters.count(slice);
  uint32_t* counts = call.counts_of(block_id());
  laps.open(call);
  await_launch_before();
  for (uint32_t expert = thread_id(); expert < call.shape.num_experts; expert += num_threads()) {
    const uint32_t own = counters.of(expert);
    counts[expert] = own;
    if (own != 0) add_device(call.totals() + expert, own);
  }
  laps.lap(0, R_COUNT, payload<R_COUNT>(slice.size()));
  laps.record();
}

// The number of ids of `expert` in the slices before `slice`. Adds the number of slices that it read to `num_seen`.
KPROF_DEVICE uint32_t look_back(const Call& call, uint32_t slice, uint32_t expert, uint32_t* num_seen) {
  uint32_t sum = 0;
  for (uint32_t left = slice; left != 0;) {
    uint32_t words[kLookAhead];
    KPROF_UNROLL(kLookAhead)
    for (uint32_t j = 0; j < kLookAhead; ++j)
      words[j] = load_global(call.counts_of(left > j ? left - 1 - j : 0) + expert);
    const uint32_t num_words = left < kLookAhead ? left : kLookAhead;
    KPROF_UNROLL(kLookAhead)
    for (uint32_t j = 0; j < kLookAhead; ++j) {
      if (j >= num_words) break;
      ++*num_seen;
      sum += words[j] & ~kIsSum;
      if ((words[j] & kIsSum) != 0) return sum;
    }
    left -= num_words;
  }
  return sum;
}

template <typename SizeOf>
__global__ void KPROF_BLOCKS_PER_PROCESSOR(SizeOf::kThreads, SizeOf::kBlocksPerProcessor) place(ProfiledCall call) {
  MOE_BLOCK_MEMORY(memory, SizeOf);
  KPROF_SHARED(block_laps::Memory<4>, laps_memory, 1);
  assume_block(SizeOf::kThreads);
  const Range slice = call.slice(block_id());
  const Placer<SizeOf> placer(call, memory);
  uint32_t ids[SizeOf::kItems];
  placer.load(slice.begin, slice.end, ids);
  const block_laps::BlockLaps<4> laps(laps_memory);
  laps.open(call);
  await_launch_before();
  laps.begin();
  uint32_t* counts = call.counts_of(block_id());
  uint32_t num_seen = 0;
  for (uint32_t expert = thread_id(); expert < call.shape.num_experts; expert += num_threads()) {
    const uint32_t own = counts[expert];
    const uint32_t before = look_back(call, block_id(), expert, &num_seen);
    store_global(counts + expert, (before + own) | kIsSum);
    memory.next[expert] = before;
  }
  sync_block();
  laps.lap(0, R_LOOK_BACK, payload<R_LOOK_BACK>(num_seen));
  const uint32_t end = align_runs(call, call.totals(), memory);
  for (uint32_t expert = thread_id(); expert < call.shape.num_experts; expert += num_threads())
    memory.next[expert] += memory.starts[expert];
  laps.lap(1, R_ALIGN);
  fill(call, call.totals(), memory.starts, end);
  sync_block();
  laps.lap(2, R_FILL, payload<R_FILL>(end - call.shape.num_ids));
  placer.place(slice, ids);
  laps.lap(3, R_PLACE, payload<R_PLACE>(slice.size()));
  laps.record();
}

}  // namespace moe_align_sort
