// A block has as many rows of weights as its share, so that all processors load as much and none runs alone at the end.
// Its warps divide the depth. Each copies what it multiplies into a ring of its own in shared memory, several stages
// ahead: the copies take no registers and nobody waits for another warp. A lane copies what it needs itself.
#pragma once

#include "call.h"

namespace skinny_gemm {

// A stage costs every warp the same few hundred cycles in series, so an event at the end of each would be felt.
constexpr uint32_t kStagesPerEvent = 8;

// What a warp holds: stages of `kDepthTiles` times 64 bytes of depth of `row_tiles` times 16 rows of weights, and of
// the tokens. A warp waits once per stage, so few rows get twice the depth. With more rows, half as many warps keep the
// memory busy, and two blocks fit a processor: the next launch's are there when the last ones of this launch end.
template <uint32_t max_tokens, uint32_t row_tiles>
struct RingSize {
  using Product = UnpackedFp8Product<max_tokens>;
  static constexpr bool kIsWide = Product::kLanes == 32, kHasFewRows = row_tiles <= kFewRingTiles;
  static constexpr uint32_t kDepthTiles = kIsWide && kHasFewRows ? 2 : 1;
  static constexpr uint32_t kBlocks = kIsWide && !kHasFewRows ? 2 : 1;
  static constexpr uint32_t kWarps =
      !kIsWide ? kRingWarpsOf64 : (kHasFewRows ? kRingWarpsOf32 : kRingWarpsOf32ManyRows);
  static constexpr uint32_t kWeightQuadsPerLane = row_tiles * kWeightQuads;
  static constexpr uint32_t kTileQuads = kWeightQuadsPerLane + Product::kTiles;
  static constexpr uint32_t kQuads = kDepthTiles * kTileQuads;
  static constexpr uint32_t kStageBytes = kQuads * Product::kLanes * sizeof(Quad);
  // The driver takes 1 KiB of each block.
  static constexpr uint32_t kMostBytes = (kMaxSharedBytes + 1024) / kBlocks - 1024;
  static constexpr uint32_t kFitting = kMostBytes / (kWarps * kStageBytes), kMaxStages = 8 / kDepthTiles;
  static constexpr uint32_t kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static_assert(kStages >= 2, "one stage is multiplied while another is on its way");
  static constexpr uint32_t kBytes = kWarps * kStages * kStageBytes;
  static constexpr uint32_t kSums = row_tiles * max_tokens * kTileRows;
  static_assert(kBytes >= kWarps * kSums * sizeof(float), "the sums lie where the ring was");
};

template <uint32_t max_tokens, uint32_t row_tiles>
class Ring {
 public:
  using Size = RingSize<max_tokens, row_tiles>;
  using Product = UnpackedFp8Product<max_tokens>;

  KPROF_DEVICE Ring(const Call& call, Range rows, Quad* memory)
      : call_(call), rows_(rows), own_(memory + warp_id() * Size::kStages * Size::kQuads * warp_width() + lane_id()) {}

  // Stages of this warp: every part of the depth belongs to one warp.
  KPROF_DEVICE uint32_t num_stages() const {
    const uint32_t num_parts = (call_.num_tiles() + Size::kDepthTiles - 1) / Size::kDepthTiles;
    return num_parts > warp_id() ? (num_parts - warp_id() - 1) / num_warps() + 1 : 0;
  }
  // The first of the stage.
  KPROF_DEVICE uint32_t tile_of(uint32_t stage) const { return (warp_id() + stage * num_warps()) * Size::kDepthTiles; }

  // Every call ends a batch, so that the last ones are counted, too.
  KPROF_DEVICE void ask_for(uint32_t stage) const {
    if (stage < num_stages()) copy_stage(stage);
    end_batch();
  }

  KPROF_DEVICE void multiply(uint32_t stage, Results<Product> (&results)[row_tiles]) const {
    const Quad* slot = slot_of(stage);
    Chunk<Product, Size::kDepthTiles> held;
    for (uint32_t d = 0; d < Size::kDepthTiles; ++d)
      for (uint32_t t = 0; t < Product::kTiles; ++t)
        held.tokens[d][t] = slot[quad_of(d, Size::kWeightQuadsPerLane + t)];
    KPROF_UNROLL(row_tiles)
    for (uint32_t r = 0; r < row_tiles; ++r) {
      for (uint32_t d = 0; d < Size::kDepthTiles; ++d)
        for (uint32_t q = 0; q < kWeightQuads; ++q) held.weights[d][q] = slot[quad_of(d, r * kWeightQuads + q)];
      results[r].add(held);
    }
  }

 private:
  KPROF_DEVICE static uint32_t num_warps() { return num_threads() / warp_width(); }
  KPROF_DEVICE Quad* slot_of(uint32_t stage) const {
    return own_ + stage % Size::kStages * Size::kQuads * warp_width();
  }
  // What is not there is not read, so its address is that of something else.
  KPROF_DEVICE void copy(Quad* place, const uint8_t* matrix, uint32_t row, uint32_t end, uint32_t byte) const {
    const bool is_there = (row < end) & (byte < call_.shape.depth);
    copy_async(place, matrix + (is_there ? static_cast<uint64_t>(row) * call_.shape.depth + byte : 0), is_there);
  }
  // Where a lane has a quad of a slot.
  KPROF_DEVICE static uint32_t quad_of(uint32_t depth_tile, uint32_t quad) {
    return (depth_tile * Size::kTileQuads + quad) * warp_width();
  }
  KPROF_DEVICE void copy_stage(uint32_t stage) const {
    for (uint32_t d = 0; d < Size::kDepthTiles; ++d) copy_tile(slot_of(stage), d, tile_of(stage) + d);
  }
  KPROF_DEVICE void copy_tile(Quad* slot, uint32_t depth_tile, uint32_t tile) const {
    const uint32_t byte = tile * kTileDepth + Product::first_byte();
    for (uint32_t i = 0; i < Size::kWeightQuadsPerLane; ++i)
      copy(slot + quad_of(depth_tile, i), call_.weights,
           rows_.begin + i / kWeightQuads * kTileRows + Product::weight_row(i % kWeightQuads), rows_.end, byte);
    for (uint32_t t = 0; t < Product::kTiles; ++t)
      copy(slot + quad_of(depth_tile, Size::kWeightQuadsPerLane + t), call_.tokens,
           t * Product::kTokensPerTile + Product::token_of_lane(), call_.shape.num_tokens, byte);
  }

  const Call& call_;
  Range rows_;
  Quad* own_;
};

// Adds up what the warps have, and stores it. `memory`: [warps][tokens][rows].
template <uint32_t max_tokens, uint32_t row_tiles>
KPROF_DEVICE void store_rows(const Call& call, Results<UnpackedFp8Product<max_tokens>> (&results)[row_tiles],
                             float* memory, Range rows) {
  constexpr uint32_t kRows = row_tiles * kTileRows, kSums = kRows * max_tokens;
  sync_block();  // nobody multiplies any more
  for (uint32_t r = 0; r < row_tiles; ++r)
    results[r].for_each([&](uint32_t token, uint32_t row, float sum) {
      memory[warp_id() * kSums + token * kRows + r * kTileRows + row] = sum;
    });
  store_sums<max_tokens, kRows>(call, memory, num_threads() / warp_width(), rows);
}

template <uint32_t max_tokens, uint32_t row_tiles>
__global__ void KPROF_BLOCKS_PER_PROCESSOR((RingSize<max_tokens, row_tiles>::kWarps *
                                            UnpackedFp8Product<max_tokens>::kLanes),
                                           (RingSize<max_tokens, row_tiles>::kBlocks)) ring(ProfiledCall call) {
  using Size = RingSize<max_tokens, row_tiles>;
  KPROF_LARGE_SHARED(Quad, memory, (Size::kBytes / sizeof(Quad)));
  let_next_launch_begin();
  // The launch before hides what it takes to open a track, mostly the fetch of the code.
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  await_launch_before();
  const Range rows = share_of_block(call.shape.num_rows);
  const Ring<max_tokens, row_tiles> copies(call, rows, memory);
  Results<UnpackedFp8Product<max_tokens>> results[row_tiles];
  kprof::Span span = profile_start(track);
  for (uint32_t stage = 0; stage + 1 < Size::kStages; ++stage) copies.ask_for(stage);
  const uint32_t num_stages = copies.num_stages();
  KPROF_UNROLL(1)
  for (uint32_t stage = 0; stage < num_stages; ++stage) {
    copies.ask_for(stage + Size::kStages - 1);
    await_batches<Size::kStages - 1>();
    copies.multiply(stage, results);
    if ((stage + 1) % kStagesPerEvent == 0 || stage + 1 == num_stages)
      span = profile_lap(track, span, R_MULTIPLY, payload<R_MULTIPLY>(copies.tile_of(stage)));
  }
  await_batches<0>();
  store_rows<max_tokens, row_tiles>(call, results, reinterpret_cast<float*>(memory), rows);
  profile_stop(track, span, R_REDUCE);
}

}  // namespace skinny_gemm
