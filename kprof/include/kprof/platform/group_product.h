// fp8 products of groups of four warps, from shared memory.
//
// A unit is a matrix of rows of 128 bytes of depth. Within 8 rows its quads are exchanged so that neither those who
// copy a unit nor those who multiply meet in a bank. This is how Hopper's matrix units expect it.
#pragma once

namespace kprof::platform {

constexpr uint32_t kGroupWarps = 4, kGroupRows = 64;
constexpr uint32_t kUnitQuads = 8, kUnitDepth = 128;

// Where a unit has a quad of a row.
KPROF_DEVICE uint32_t place_in_unit(uint32_t row, uint32_t quad) { return row * kUnitQuads + (quad ^ row % 8); }

}  // namespace kprof::platform

// Only code for exactly sm_90 (sm_90a) has wgmma.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "wgmma.h"
#else

namespace kprof::platform {

// Where warps multiply alone: each has 16 rows of the weights.
template <uint32_t max_tokens>
struct GroupProduct : Fp8Product<max_tokens> {
  using OfWarp = Fp8Product<max_tokens>;
  using Sums = float[OfWarp::kTiles][4];

  // The warps of a group wait for each other, and for what each thread has copied. Here the whole block waits, so all
  // its groups call this equally often.
  KPROF_DEVICE static void meet(uint32_t) { sync_block(); }

  // Adds the products of `count` units of weights with `rows` rows, each of which one of tokens follows. Rows that
  // nobody has copied have any result.
  template <uint32_t rows, uint32_t count>
  KPROF_DEVICE static void add(Sums (&sums)[count], const Quad* weights) {
    const uint32_t first_row = warp_id() % kGroupWarps * (kGroupRows / kGroupWarps);
    if (first_row >= rows) return;
    for (uint32_t u = 0; u < count; ++u, weights += (rows + max_tokens) * kUnitQuads)
      for (uint32_t half = 0; half < 2; ++half)
        add_half(sums[u], weights, weights + rows * kUnitQuads, first_row, half);
  }

  // After await() the sums are there, and the units may be overwritten once the whole group is here.
  template <uint32_t count>
  KPROF_DEVICE static void await(Sums (&)[count]) {}

 private:
  KPROF_DEVICE static void add_half(Sums& sums, const Quad* weights, const Quad* tokens, uint32_t first_row,
                                    uint32_t half) {
    const uint32_t quad = OfWarp::first_byte() / sizeof(Quad) + half * kUnitQuads / 2;
    Quad held[kWeightQuads];
    for (uint32_t q = 0; q < kWeightQuads; ++q)
      held[q] = weights[place_in_unit(first_row + OfWarp::weight_row(q), quad)];
    for (uint32_t t = 0; t < OfWarp::kTiles; ++t)
      OfWarp::add(sums[t], held, tokens[place_in_unit(t * OfWarp::kTokensPerTile + OfWarp::token_of_lane(), quad)]);
  }
};

}  // namespace kprof::platform
#endif
