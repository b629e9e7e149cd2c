// Each warp loads the weights that it multiplies directly into registers.
#pragma once

#include "call.h"

namespace skinny_gemm {

constexpr uint32_t kMaxThreads = 512;
constexpr uint32_t kMaxWarps = kMaxThreads / 32;

// Tiles from `begin` to `end`, with `ahead` of them in flight.
template <uint32_t max_tokens, uint32_t ahead, bool is_whole>
KPROF_DEVICE void multiply_tiles(const Call& call, Results<Fp8Product<max_tokens>>& results, uint32_t first_row,
                                 uint32_t begin, uint32_t end, kprof::Track& track) {
  kprof::Span span = profile_start(track);
  KPROF_UNROLL(1)
  for (uint32_t tile = begin; tile < end; tile += ahead) {
    Chunk<Fp8Product<max_tokens>, ahead> chunk;
    chunk.template load_weights<is_whole>(call, first_row, tile);
    chunk.template load_tokens<is_whole>(call, tile);
    // Nothing is multiplied before all loads are on their way: ptxas would put them between the products.
    sync_warp();
    results.add(chunk);
    span = profile_lap(track, span, R_MULTIPLY, payload<R_MULTIPLY>(tile));
  }
}

// 16 rows per warp, over the whole depth.
template <uint32_t max_tokens>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) tiled(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  const uint32_t first_row = (block_id() * (num_threads() / warp_width()) + warp_id()) * kTileRows;
  Results<Fp8Product<max_tokens>> results;
  if (call.is_whole != 0) {
    multiply_tiles<max_tokens, 1, true>(call, results, first_row, 0, call.num_tiles(), track);
  } else {
    multiply_tiles<max_tokens, 1, false>(call, results, first_row, 0, call.num_tiles(), track);
  }
  results.for_each([&](uint32_t token, uint32_t row, float sum) { store_result(call, token, first_row + row, sum); });
}

// 16 rows per block, whose warps divide the depth into pieces of `ahead` tiles. `needs_whole`: only for shapes that are
// multiples of 16-byte vectors, because moving single bytes takes registers that the tiles in flight need.
template <uint32_t max_tokens, uint32_t ahead, bool needs_whole>
__global__ void KPROF_LAUNCH_BOUNDS(kMaxThreads) split(ProfiledCall call) {
  KPROF_SHARED(float, sums, kMaxWarps* max_tokens* kTileRows);
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  const uint32_t num_warps = num_threads() / warp_width(), first_row = block_id() * kTileRows;
  const uint32_t num_pieces = (call.num_tiles() + ahead - 1) / ahead;
  const uint32_t begin = num_pieces * warp_id() / num_warps * ahead;
  const uint32_t end = num_pieces * (warp_id() + 1) / num_warps * ahead;
  Results<Fp8Product<max_tokens>> results;
  if (needs_whole || call.is_whole != 0) {
    multiply_tiles<max_tokens, ahead, true>(call, results, first_row, begin, end, track);
  } else {
    multiply_tiles<max_tokens, ahead, needs_whole>(call, results, first_row, begin, end, track);
  }
  const kprof::Span span = profile_start(track);
  reduce_and_store<max_tokens>(call, results, sums, warp_id(), num_warps, first_row);
  profile_stop(track, span, R_REDUCE);
}

}  // namespace skinny_gemm
