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
};
using Few = Size<kFewExperts, 8, 512, 2, 4096>;
using Many = Size<kMaxExperts, 10, 256, 3, 4096>;
// For small batches: less for each block to do.
using FewInSmallTiles = Size<kFewExperts, 8, 512, 2, 2048>;
// For large batches: more ids between barriers, and longer runs. It fills the 48 KiB that a block has on NVIDIA GPUs.
using FewInLargeTiles = Size<kFewExperts, 8, 512, 2, 9216>;

// Counts of a warp that one instruction clears.
constexpr uint32_t kCountsPerQuad = sizeof(Quad) / sizeof(uint16_t);

// The shared memory of a block.
struct BlockMemory {
  uint32_t* tile;         // [kTileIds]: expert << kExpertShift | place in the tile; before that, counters
  uint16_t* warp_counts;  // [warps][E]: ids, later the place of the first in the tile
  uint32_t* next;         // [E]: where the next id of an expert goes
  uint32_t* starts;       // [E]: where the run of an expert begins in sorted_ids
  uint32_t* shifts;       // [E]: from its place in the sorted tile to the one in sorted_ids
  uint32_t* sums;         // of warps
};

#define MOE_BLOCK_MEMORY(name, Size)                                                                                \
  KPROF_SHARED(uint32_t, name##_tile, Size::kTileIds);                                                              \
  KPROF_SHARED(Quad, name##_counts, Size::kMost*(Size::kThreads / 32) / kCountsPerQuad);                            \
  KPROF_SHARED(uint32_t, name##_next, Size::kMost);                                                                 \
  KPROF_SHARED(uint32_t, name##_starts, Size::kMost);                                                               \
  KPROF_SHARED(uint32_t, name##_shifts, Size::kMost);                                                               \
  KPROF_SHARED(uint32_t, name##_sums, 33);                                                                          \
  const BlockMemory name {                                                                                          \
    name##_tile, reinterpret_cast<uint16_t*>(name##_counts), name##_next, name##_starts, name##_shifts, name##_sums \
  }

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

// Sorted ids have their expert in the upper half, times four: the distance in bytes of its word in an array.
constexpr uint32_t kExpertShift = 18;
template <typename Element>
KPROF_DEVICE Element at_bytes(const Element* array, uint32_t bytes) {
  return *reinterpret_cast<const Element*>(reinterpret_cast<const char*>(array) + bytes);
}

// In halves: NVIDIA's upper one is known to be zero, and a test of 64 bits would be two.
KPROF_DEVICE bool is_none(uint64_t lanes) {
  return (static_cast<uint32_t>(lanes) | static_cast<uint32_t>(lanes >> 32)) == 0;
}

template <typename SizeOf>
class Placer {
 public:
  static constexpr uint32_t kItems = SizeOf::kItems;

  KPROF_DEVICE Placer(const Call& call, const BlockMemory& memory) : call_(call), memory_(memory) {}

  // Places the ids of a range from `next` on, and advances `next`.
  KPROF_DEVICE void place(Range range) const {
    uint32_t ids[kItems];
    load(range.begin, range.end, ids);
    place(range, ids);
  }

  // The same with the ids of the first tile, which have been loaded.
  KPROF_DEVICE void place(Range range, uint32_t (&ids)[kItems]) const {
    const uint32_t tile_ids = num_threads() * kItems;
    KPROF_UNROLL(1)
    for (uint32_t begin = range.begin; begin < range.end; begin += tile_ids) {
      uint32_t ranked[kItems];
      forget_counts();
      const bool is_whole = all_named(ids);
      if (is_whole) {
        rank<true>(ids, ranked);
      } else {
        rank<false>(ids, ranked);
      }
      sync_block();
      add_up();
      load(begin + tile_ids, range.end, ids);  // on their way while this tile is sorted and written
      if (is_whole) {
        sort<true>(ranked);
      } else {
        sort<false>(ranked);
      }
      sync_block();
      write(begin);
    }
  }

  KPROF_DEVICE void load(uint32_t begin, uint32_t end, uint32_t (&ids)[kItems]) const {
    const int32_t* own = call_.topk_ids + begin + place_in_tile(0);
    if (begin + (warp_id() + 1) * kItems * warp_width() <= end) {
      KPROF_UNROLL(kItems)
      for (uint32_t i = 0; i < kItems; ++i) ids[i] = static_cast<uint32_t>(own[i * warp_width()]);
      return;
    }
    KPROF_UNROLL(kItems)
    for (uint32_t i = 0; i < kItems; ++i)
      ids[i] = begin + place_in_tile(i) < end ? static_cast<uint32_t>(own[i * warp_width()]) : ~0u;
  }

 private:
  static constexpr uint32_t kMostWarps = SizeOf::kThreads / 32;
  // Ids whose places are read before the first of them is stored: a store would keep the next read waiting.
  static constexpr uint32_t kTogether = kItems % 8 == 0 ? 8 : kItems % 6 == 0 ? 6 : kItems;

  // Item i of a lane: warps read consecutive ranges.
  KPROF_DEVICE static uint32_t place_in_tile(uint32_t item) {
    return (warp_id() * kItems + item) * warp_width() + lane_id();
  }

  KPROF_DEVICE bool names_expert(uint32_t id) const { return id < call_.shape.num_experts; }
  KPROF_DEVICE uint16_t* counts_of_warp(uint32_t warp) const { return memory_.warp_counts + warp * SizeOf::kMost; }

  // Whether all ids of the warp name experts: then nothing else asks.
  KPROF_DEVICE bool all_named(const uint32_t (&ids)[kItems]) const {
    uint32_t largest = 0;
    KPROF_UNROLL(kItems)
    for (uint32_t i = 0; i < kItems; ++i) largest = ids[i] > largest ? ids[i] : largest;
    return lanes_where(!names_expert(largest)) == 0;
  }

  KPROF_DEVICE void forget_counts() const {
    Quad* counts = reinterpret_cast<Quad*>(counts_of_warp(warp_id()));
    for (uint32_t i = lane_id(); i < SizeOf::kMost / kCountsPerQuad; i += warp_width()) counts[i] = Quad{};
    sync_warp();
  }

  // Every id with the number of the warp's ids up to it that name its expert: expert << kExpertShift | number.
  template <bool is_whole>
  KPROF_DEVICE void rank(const uint32_t (&ids)[kItems], uint32_t (&ranked)[kItems]) const {
    uint16_t* counts = counts_of_warp(warp_id());
    const uint64_t lanes_after = lanes_where(true) & ~uint64_t{1} << lane_id();
    KPROF_UNROLL(kItems)
    for (uint32_t i = 0; i < kItems; ++i) {
      const bool is_named = is_whole || names_expert(ids[i]);
      uint64_t peers = lanes_equal(ids[i], SizeOf::kBits);
      if (!is_whole) peers &= lanes_where(is_named);
      const uint32_t number = (is_named ? counts[ids[i]] : 0) + count_lanes(peers & ~lanes_after);
      ranked[i] = is_named ? ids[i] << kExpertShift | number : ~0u;
      sync_warp();
      if (is_named && is_none(peers & lanes_after)) counts[ids[i]] = static_cast<uint16_t>(number);
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
      uint32_t of_warps[kMostWarps];
      KPROF_UNROLL(kMostWarps)
      for (uint32_t warp = 0; warp < kMostWarps; ++warp)
        of_warps[warp] = warp < num_warps ? counts_of_warp(warp)[expert] : 0;
      uint32_t place = before;
      KPROF_UNROLL(kMostWarps)
      for (uint32_t warp = 0; warp < kMostWarps; ++warp) {
        if (warp < num_warps) counts_of_warp(warp)[expert] = static_cast<uint16_t>(place);
        place += of_warps[warp];
      }
    });
    sync_block();
  }

  template <bool is_whole>
  KPROF_DEVICE void sort(const uint32_t (&ranked)[kItems]) const {
    const uint16_t* firsts = counts_of_warp(warp_id());
    KPROF_UNROLL(kItems / kTogether)
    for (uint32_t begin = 0; begin < kItems; begin += kTogether) {
      uint32_t places[kTogether];
      KPROF_UNROLL(kTogether)
      for (uint32_t j = 0; j < kTogether; ++j) {
        const uint32_t id = ranked[begin + j];
        places[j] = is_whole || id != ~0u ? at_bytes(firsts, id >> 17) + (id & 0xffffu) : 0;
      }
      KPROF_UNROLL(kTogether)
      for (uint32_t j = 0; j < kTogether; ++j)
        if (is_whole || places[j] != 0)
          memory_.tile[places[j] - 1] = (ranked[begin + j] & 0xffff0000u) | place_in_tile(begin + j);
    }
  }

  KPROF_DEVICE void write(uint32_t begin) const {
    const uint32_t num_sorted = memory_.sums[32];
    const auto write_one = [&](uint32_t i) {
      const uint32_t id = memory_.tile[i];
      call_.sorted_ids[at_bytes(memory_.shifts, id >> 16) + i] = static_cast<int32_t>(begin + (id & 0xffffu));
    };
    if (num_sorted == num_threads() * kItems) {
      KPROF_UNROLL(kItems)
      for (uint32_t i = 0; i < kItems; ++i) write_one(thread_id() + i * num_threads());
      return;
    }
    for (uint32_t i = thread_id(); i < num_sorted; i += num_threads()) write_one(i);
  }

  const Call& call_;
  const BlockMemory& memory_;
};

}  // namespace moe_align_sort
