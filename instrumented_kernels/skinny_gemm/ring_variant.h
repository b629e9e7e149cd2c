// A block has as many rows of weights as its share, so that all processors load as much and none runs alone at the end.
// Its warps divide the depth. Each copies what it multiplies into a ring of its own in shared memory, several stages
// ahead: the copies take no registers and nobody waits for another warp. A lane copies what it needs itself.
#pragma once

#include "call.h"

namespace skinny_gemm {

constexpr uint32_t kMaxStages = 8;

// What a warp holds: stages of 64 bytes of depth of `row_tiles` times 16 rows of weights, and of the tokens.
template <uint32_t max_tokens, uint32_t row_tiles>
struct RingSize {
  using Product = Fp8Product<max_tokens>;
  static constexpr uint32_t kWeightQuadsPerLane = row_tiles * kWeightQuads;
  static constexpr uint32_t kQuads = kWeightQuadsPerLane + Product::kTiles;
  static constexpr uint32_t kWarps = Product::kLanes == 32 ? kRingWarpsOf32 : kRingWarpsOf64;
  static constexpr uint32_t kStageBytes = kQuads * Product::kLanes * sizeof(Quad);
  static constexpr uint32_t kFitting = kMaxSharedBytes / (kWarps * kStageBytes);
  static constexpr uint32_t kStages = kFitting < kMaxStages ? kFitting : kMaxStages;
  static_assert(kStages >= 2, "one stage is multiplied while another is on its way");
  static constexpr uint32_t kBytes = kWarps * kStages * kStageBytes;
  static constexpr uint32_t kSums = row_tiles * max_tokens * kTileRows;
  static_assert(kBytes >= kWarps * kSums * sizeof(float), "the sums lie where the ring was");
};

struct Rows {
  uint32_t begin;
  uint32_t end;
};

// The rows of this block.
KPROF_DEVICE Rows own_rows(const Call& call) {
  const uint64_t num_rows = call.shape.num_rows;
  return {static_cast<uint32_t>(num_rows * block_id() / num_blocks()),
          static_cast<uint32_t>(num_rows * (block_id() + 1) / num_blocks())};
}

template <uint32_t max_tokens, uint32_t row_tiles>
class Ring {
 public:
  using Size = RingSize<max_tokens, row_tiles>;
  using Product = Fp8Product<max_tokens>;

  KPROF_DEVICE Ring(const Call& call, Rows rows, Quad* memory)
      : call_(call), rows_(rows), own_(memory + warp_id() * Size::kStages * Size::kQuads * warp_width() + lane_id()) {}

  // Stages of this warp: every tile of the depth belongs to one warp.
  KPROF_DEVICE uint32_t num_stages() const {
    const uint32_t num_tiles = call_.num_tiles();
    return num_tiles > warp_id() ? (num_tiles - warp_id() - 1) / num_warps() + 1 : 0;
  }
  KPROF_DEVICE uint32_t tile_of(uint32_t stage) const { return warp_id() + stage * num_warps(); }

  // Every call ends a batch, so that the last ones are counted, too.
  KPROF_DEVICE void ask_for(uint32_t stage) const {
    if (stage < num_stages()) copy_stage(stage);
    end_batch();
  }

  KPROF_DEVICE void multiply(uint32_t stage, Results<Product> (&results)[row_tiles]) const {
    const Quad* slot = slot_of(stage);
    Chunk<Product, 1> held;
    for (uint32_t t = 0; t < Product::kTiles; ++t)
      held.tokens[0][t] = slot[(Size::kWeightQuadsPerLane + t) * warp_width()];
    for (uint32_t r = 0; r < row_tiles; ++r) {
      for (uint32_t q = 0; q < kWeightQuads; ++q) held.weights[0][q] = slot[(r * kWeightQuads + q) * warp_width()];
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
  KPROF_DEVICE void copy_stage(uint32_t stage) const {
    Quad* slot = slot_of(stage);
    const uint32_t byte = tile_of(stage) * kTileDepth + Product::first_byte();
    for (uint32_t i = 0; i < Size::kWeightQuadsPerLane; ++i)
      copy(slot + i * warp_width(), call_.weights,
           rows_.begin + i / kWeightQuads * kTileRows + Product::weight_row(i % kWeightQuads), rows_.end, byte);
    for (uint32_t t = 0; t < Product::kTiles; ++t)
      copy(slot + (Size::kWeightQuadsPerLane + t) * warp_width(), call_.tokens,
           t * Product::kTokensPerTile + Product::token_of_lane(), call_.shape.num_tokens, byte);
  }

  const Call& call_;
  Rows rows_;
  Quad* own_;
};

// Adds up what the warps have, and stores it. `memory`: [warps][tokens][rows].
template <uint32_t max_tokens, uint32_t row_tiles>
KPROF_DEVICE void store_rows(const Call& call, Results<Fp8Product<max_tokens>> (&results)[row_tiles], float* memory,
                             Rows rows) {
  constexpr uint32_t kRows = row_tiles * kTileRows, kSums = kRows * max_tokens;
  sync_block();  // nobody multiplies any more
  for (uint32_t r = 0; r < row_tiles; ++r)
    results[r].for_each([&](uint32_t token, uint32_t row, float sum) {
      memory[warp_id() * kSums + token * kRows + r * kTileRows + row] = sum;
    });
  sync_block();
  const uint32_t num_warps = num_threads() / warp_width();
  for (uint32_t i = thread_id(); i < kSums; i += num_threads()) {
    float sum = 0.0f;
    for (uint32_t w = 0; w < num_warps; ++w) sum += memory[w * kSums + i];
    const uint32_t row = rows.begin + i % kRows;
    if (row < rows.end) store_result(call, i / kRows, row, sum);
  }
}

template <uint32_t max_tokens, uint32_t row_tiles>
__global__ void KPROF_LAUNCH_BOUNDS((RingSize<max_tokens, row_tiles>::kWarps * Fp8Product<max_tokens>::kLanes))
    ring(ProfiledCall call) {
  using Size = RingSize<max_tokens, row_tiles>;
  KPROF_LARGE_SHARED(Quad, memory, (Size::kBytes / sizeof(Quad)));
  await_launch_before();
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  const Rows rows = own_rows(call);
  const Ring<max_tokens, row_tiles> copies(call, rows, memory);
  Results<Fp8Product<max_tokens>> results[row_tiles];
  kprof::Span span = profile_start(track);
  for (uint32_t stage = 0; stage + 1 < Size::kStages; ++stage) copies.ask_for(stage);
  const uint32_t num_stages = copies.num_stages();
  KPROF_UNROLL(1)
  for (uint32_t stage = 0; stage < num_stages; ++stage) {
    copies.ask_for(stage + Size::kStages - 1);
    await_batches<Size::kStages - 1>();
    copies.multiply(stage, results);
    span = profile_lap(track, span, R_MULTIPLY, payload<R_MULTIPLY>(copies.tile_of(stage)));
  }
  await_batches<0>();
  store_rows<max_tokens, row_tiles>(call, results, reinterpret_cast<float*>(memory), rows);
  profile_stop(track, span, R_REDUCE);
}

}  // namespace skinny_gemm
