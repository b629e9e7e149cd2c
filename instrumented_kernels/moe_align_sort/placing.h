// Places ids: sorts one tile at a time by expert in shared memory, in the order of the ids, and writes it in runs.
//
// Within a warp, lanes with the same expert find each other by votes, and each warp counts ids per expert. The warps'
// counts are then summed over warps and experts, which gives the place of each warp's first id of an expert.
#pragma once

#include "counting.h"

namespace moe_align_sort {

// One size of the kernels: for up to kMost experts and blocks of up to kThreads threads.
template <uint32_t most, uint32_t num_bits, uint32_t threads, uint32_t blocks, uint32_t tile_ids>
struct Size {
  static constexpr uint32_t kMost = most;
  static constexpr uint32_t kBits = num_bits;
  static constexpr uint32_t kThreads = threads;
  static constexpr uint32_t kBlocksPerProcessor = blocks;
  static constexpr uint32_t kTileIds = tile_ids;
  static constexpr uint32_t kItems = tile_ids / threads;
  static_assert(tile_ids >= kCounters, "counters lie where tiles are sorted later");
};
using Few = Size<kFewExperts, 8, 512, 2, 4096>;
using Many = Size<kMaxExperts, 10, 256, 3, 4096>;
// For large batches: twice as many ids between barriers, and runs twice as long.
using FewInLargeTiles = Size<kFewExperts, 8, 512, 2, 8192>;

// The shared memory of a block.
struct BlockMemory {
  uint32_t* tile;         // [kTileIds]: expert << 16 | place in the tile; before that, counters
  uint16_t* warp_counts;  // [warps][E]: ids, later the place of the first in the tile
  uint32_t* next;         // [E]: where the next id of an expert goes
  uint32_t* starts;       // [E]: where the run of an expert begins in sorted_ids
  uint32_t* shifts;       // [E]: from its place in the sorted tile to the one in sorted_ids
  uint32_t* sums;         // of warps
};

#define MOE_BLOCK_MEMORY(name, Size)                                        \
  KPROF_SHARED(uint32_t, name##_tile, Size::kTileIds);                      \
  KPROF_SHARED(uint16_t, name##_counts, Size::kMost*(Size::kThreads / 32)); \
  KPROF_SHARED(uint32_t, name##_next, Size::kMost);                         \
  KPROF_SHARED(uint32_t, name##_starts, Size::kMost);                       \
  KPROF_SHARED(uint32_t, name##_shifts, Size::kMost);                       \
  KPROF_SHARED(uint32_t, name##_sums, 33);                                  \
  const BlockMemory name { name##_tile, name##_counts, name##_next, name##_starts, name##_shifts, name##_sums }

// The sum over this lane and the lanes before it.
KPROF_DEVICE uint32_t sum_of_lanes(uint32_t value) {
  for (uint32_t distance = 1; distance < warp_width(); distance *= 2) {
    const bool has_source = lane_id() >= distance;
    const uint32_t other = shuffle(value, has_source ? lane_id() - distance : lane_id());
    if (has_source) value += other;
  }
  return value;
}

// The sum over all threads before this one; `sums[32]` is the sum over all. Has two barriers.
KPROF_DEVICE uint32_t sum_before(uint32_t value, uint32_t* sums) {
  const uint32_t inclusive = sum_of_lanes(value);
  if (lane_id() == warp_width() - 1) sums[warp_id()] = inclusive;
  sync_block();
  uint32_t before = inclusive - value;
  for (uint32_t warp = 0; warp < warp_id(); ++warp) before += sums[warp];
  if (thread_id() == num_threads() - 1) sums[32] = before + value;
  sync_block();
  return before;
}

// Calls `use(expert, value, sum over the experts before it)`. All threads of the block call it together. Calls
// `value_of(expert)` once, uses `shifts`, and leaves the total in `sums[32]`.
template <typename ValueOf, typename Use>
KPROF_DEVICE void scan_experts(uint32_t num_experts, const BlockMemory& memory, ValueOf value_of, Use use) {
  const uint32_t per_thread = (num_experts + num_threads() - 1) / num_threads();
  const uint32_t first = at_most(thread_id() * per_thread, num_experts);
  const uint32_t last = at_most(first + per_thread, num_experts);
  uint32_t sum = 0;
  for (uint32_t expert = first; expert < last; ++expert) {
    memory.shifts[expert] = value_of(expert);
    sum += memory.shifts[expert];
  }
  uint32_t before = sum_before(sum, memory.sums);
  for (uint32_t expert = first; expert < last; ++expert) {
    const uint32_t value = memory.shifts[expert];
    use(expert, value, before);
    before += value;
  }
}

template <typename SizeOf>
class Placer {
 public:
  KPROF_DEVICE Placer(const Call& call, const BlockMemory& memory) : call_(call), memory_(memory) {}

  // Places the ids of a range from `next` on, and advances `next`.
  KPROF_DEVICE void place(Range range) const {
    const uint32_t tile_ids = num_threads() * kItems;
    uint32_t ids[kItems];
    load(range.begin, range.end, ids);
    KPROF_UNROLL(1)
    for (uint32_t begin = range.begin; begin < range.end; begin += tile_ids) {
      uint32_t ranked[kItems];
      rank(ids, ranked);
      load(begin + tile_ids, range.end, ids);  // on their way while this tile is sorted
      sync_block();
      add_up();
      sort(ranked);
      sync_block();
      write(begin);
    }
  }

 private:
  static constexpr uint32_t kItems = SizeOf::kItems;
  static constexpr uint32_t kMostWarps = SizeOf::kThreads / 32;

  // Item i of a lane: warps read consecutive ranges.
  KPROF_DEVICE static uint32_t place_in_tile(uint32_t item) {
    return (warp_id() * kItems + item) * warp_width() + lane_id();
  }

  KPROF_DEVICE void load(uint32_t begin, uint32_t end, uint32_t (&ids)[kItems]) const {
    KPROF_UNROLL(kItems)
    for (uint32_t i = 0; i < kItems; ++i) {
      const uint32_t at = begin + place_in_tile(i);
      ids[i] = at < end ? static_cast<uint32_t>(call_.topk_ids[at]) : ~0u;
    }
  }

  KPROF_DEVICE bool names_expert(uint32_t id) const { return id < call_.shape.num_experts; }
  KPROF_DEVICE uint16_t* counts_of_warp(uint32_t warp) const { return memory_.warp_counts + warp * SizeOf::kMost; }

  // Every id with its rank among the warp's ids of the same expert: expert << 16 | rank.
  KPROF_DEVICE void rank(const uint32_t (&ids)[kItems], uint32_t (&ranked)[kItems]) const {
    uint16_t* counts = counts_of_warp(warp_id());
    for (uint32_t expert = lane_id(); expert < call_.shape.num_experts; expert += warp_width()) counts[expert] = 0;
    sync_warp();
    const uint64_t lanes_before = (uint64_t{1} << lane_id()) - 1;
    KPROF_UNROLL(kItems)
    for (uint32_t i = 0; i < kItems; ++i) {
      const bool is_named = names_expert(ids[i]);
      const uint64_t peers = lanes_equal(ids[i], SizeOf::kBits) & lanes_where(is_named);
      const uint32_t num_before = count_lanes(peers & lanes_before);
      const uint32_t so_far = is_named ? counts[ids[i]] : 0;
      ranked[i] = is_named ? ids[i] << 16 | (so_far + num_before) : ~0u;
      sync_warp();
      if (is_named && num_before == 0) counts[ids[i]] = static_cast<uint16_t>(so_far + count_lanes(peers));
      sync_warp();
    }
  }

  // Turns the warps' counts into the places of their first ids in the tile.
  KPROF_DEVICE void add_up() const {
    const uint32_t num_warps = num_threads() / warp_width();
    const auto sum_of_warps = [&](uint32_t expert) {
      uint32_t sum = 0;
      KPROF_UNROLL(kMostWarps)
      for (uint32_t warp = 0; warp < kMostWarps; ++warp) sum += warp < num_warps ? counts_of_warp(warp)[expert] : 0;
      return sum;
    };
    scan_experts(call_.shape.num_experts, memory_, sum_of_warps, [&](uint32_t expert, uint32_t own, uint32_t before) {
      const uint32_t next = memory_.next[expert];
      memory_.next[expert] = next + own;
      memory_.shifts[expert] = next - before;
      uint32_t place = before;
      for (uint32_t warp = 0; warp < num_warps; ++warp) {
        const uint32_t of_warp = counts_of_warp(warp)[expert];
        counts_of_warp(warp)[expert] = static_cast<uint16_t>(place);
        place += of_warp;
      }
    });
    sync_block();
  }

  KPROF_DEVICE void sort(const uint32_t (&ranked)[kItems]) const {
    const uint16_t* places = counts_of_warp(warp_id());
    KPROF_UNROLL(kItems)
    for (uint32_t i = 0; i < kItems; ++i) {
      if (ranked[i] == ~0u) continue;
      const uint32_t expert = ranked[i] >> 16;
      memory_.tile[places[expert] + (ranked[i] & 0xffffu)] = expert << 16 | place_in_tile(i);
    }
  }

  KPROF_DEVICE void write(uint32_t begin) const {
    const uint32_t num_sorted = memory_.sums[32];
    for (uint32_t i = thread_id(); i < num_sorted; i += num_threads()) {
      const uint32_t id = memory_.tile[i];
      call_.sorted_ids[memory_.shifts[id >> 16] + i] = static_cast<int32_t>(begin + (id & 0xffffu));
    }
  }

  const Call& call_;
  const BlockMemory& memory_;
};

}  // namespace moe_align_sort
