// One call, and the loads of a lane's part of a tile.
#pragma once

#include <kprof/compute.h>

#include "kernel.h"
#include "local_call.h"

namespace skinny_gemm {

using namespace kernel;

constexpr uint32_t kTileRows = 16;
constexpr uint32_t kTileDepth = 64;

struct Call : local_call::LocalCall<CallArguments, local_call::NoWorkspace<Shape>> {
  using LocalCall::LocalCall;

  // Tiles along the depth. The last one may extend beyond the end, where everything reads as zero.
  KPROF_DEVICE uint32_t num_tiles() const { return (shape.depth + kTileDepth - 1) / kTileDepth; }

  // 16 bytes of a row from `begin` on.
  template <bool is_whole>
  KPROF_DEVICE Quad load(const uint8_t* matrix, uint32_t row, uint32_t num_rows, uint32_t begin) const {
    uint32_t words[4] = {0, 0, 0, 0};
    const uint8_t* data = matrix + static_cast<uint64_t>(row) * shape.depth + begin;
    const bool is_there = (row < num_rows) & (begin < shape.depth);
    if constexpr (is_whole) {
      if (is_there) return *reinterpret_cast<const Quad*>(data);
    } else {
      for (uint32_t j = 0; j < 16; ++j)
        if (is_there && begin + j < shape.depth) words[j / 4] |= static_cast<uint32_t>(data[j]) << j % 4 * 8;
    }
    return bits_as<Quad>(words);
  }
};

using ProfiledCall = variants::Profiled<Call>;

// A lane's part of `num_tiles` tiles that are consecutive in depth.
template <typename Product, uint32_t num_tiles>
struct Chunk {
  Quad weights[num_tiles][kWeightQuads];
  Quad tokens[num_tiles][Product::kTiles];

  template <bool is_whole>
  KPROF_DEVICE void load_weights(const Call& call, uint32_t first_row, uint32_t first_tile) {
    for (uint32_t j = 0; j < num_tiles; ++j)
      for (uint32_t q = 0; q < kWeightQuads; ++q)
        weights[j][q] = call.load<is_whole>(call.weights, first_row + Product::weight_row(q), call.shape.num_rows,
                                            byte_of(first_tile + j));
  }
  template <bool is_whole>
  KPROF_DEVICE void load_tokens(const Call& call, uint32_t first_tile) {
    for (uint32_t j = 0; j < num_tiles; ++j)
      for (uint32_t t = 0; t < Product::kTiles; ++t)
        tokens[j][t] = call.load<is_whole>(call.tokens, t * Product::kTokensPerTile + Product::token_of_lane(),
                                           call.shape.num_tokens, byte_of(first_tile + j));
  }

 private:
  KPROF_DEVICE static uint32_t byte_of(uint32_t tile) { return tile * kTileDepth + Product::first_byte(); }
};

// The results of 16 rows for all tokens, distributed over a warp. Matrix units sum a chunk, some with less precision
// than fp32; chunks are added in fp32.
template <typename Product>
struct Results {
  float sums[Product::kTiles][4];

  KPROF_DEVICE Results() {
    for (auto& tile : sums)
      for (float& sum : tile) sum = 0.0f;
  }

  template <uint32_t num_tiles>
  KPROF_DEVICE void add(const Chunk<Product, num_tiles>& chunk) {
    for (uint32_t t = 0; t < Product::kTiles; ++t) {
      float of_chunk[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (uint32_t j = 0; j < num_tiles; ++j) Product::add(of_chunk, chunk.weights[j], chunk.tokens[j][t]);
      for (uint32_t i = 0; i < 4; ++i) sums[t][i] += of_chunk[i];
    }
  }
  KPROF_DEVICE void add(const float (&of_chunk)[Product::kTiles][4]) {
    for (uint32_t t = 0; t < Product::kTiles; ++t)
      for (uint32_t i = 0; i < 4; ++i) sums[t][i] += of_chunk[t][i];
  }

  // Calls `use(token, row of 16, result)` for this lane's results.
  template <typename Use>
  KPROF_DEVICE void for_each(Use use) {
    for (uint32_t t = 0; t < Product::kTiles; ++t) {
      Product::finish(sums[t]);
      for (uint32_t i = 0; i < Product::kResults; ++i)
        use(t * Product::kTokensPerTile + Product::result_token(i), Product::result_row(i), sums[t][i]);
    }
  }
};

KPROF_DEVICE void store_result(const Call& call, uint32_t token, uint32_t row, float sum) {
  if (token < call.shape.num_tokens && row < call.shape.num_rows)
    call.out[static_cast<uint64_t>(token) * call.shape.num_rows + row] = float_to_half(sum * call.scale);
}

// Adds up the results of `num_warps` warps of the block for the same 16 rows, and stores them. `memory`:
// [warps][tokens][16].
template <uint32_t max_tokens, typename Product>
KPROF_DEVICE void reduce_and_store(const Call& call, Results<Product>& results, float* memory, uint32_t warp,
                                   uint32_t num_warps, uint32_t first_row) {
  constexpr uint32_t kResults = max_tokens * kTileRows;
  if (warp < num_warps)
    results.for_each(
        [&](uint32_t token, uint32_t row, float sum) { memory[warp * kResults + token * kTileRows + row] = sum; });
  sync_block();
  for (uint32_t i = thread_id(); i < kResults; i += num_threads()) {
    float sum = 0.0f;
    for (uint32_t w = 0; w < num_warps; ++w) sum += memory[w * kResults + i];
    store_result(call, i / kTileRows, first_row + i % kTileRows, sum);
  }
}

// Adds up `num_sums` sums of all that a block has, and stores what there is. `memory`: [sums][tokens][rows].
template <uint32_t max_tokens, uint32_t rows>
KPROF_DEVICE void store_sums(const Call& call, const float* memory, uint32_t num_sums, Range share) {
  constexpr uint32_t kResults = rows * max_tokens;
  sync_block();
  for (uint32_t i = thread_id(); i < kResults; i += num_threads()) {
    float sum = 0.0f;
    for (uint32_t s = 0; s < num_sums; ++s) sum += memory[s * kResults + i];
    const uint32_t row = share.begin + i % rows;
    if (row < share.end) store_result(call, i / rows, row, sum);
  }
}

}  // namespace skinny_gemm
