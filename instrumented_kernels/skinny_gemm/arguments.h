// A call: what plan.py fills in, and the kernels read. Python reads the declarations (instrumented_kernels/layouts.py).
#pragma once

#include "shared_layouts.h"

namespace skinny_gemm {

// Blocks of `ring` with up to so many times 16 rows have few rows.
constexpr uint32_t kFewRingTiles = 2;
// The most warps of a block of `ring` with few rows, and with more, by the lanes of a warp: two stages of the largest
// ring fit shared memory.
constexpr uint32_t kRingWarpsOf32 = 8;
constexpr uint32_t kRingWarpsOf32ManyRows = 4;
constexpr uint32_t kRingWarpsOf64 = 3;
// Blocks of `groups` with up to so many rows have few rows.
constexpr uint32_t kFewGroupRows = 32;
// Groups of four warps of a block of `groups` with few rows, and with more, by the lanes of a warp.
constexpr uint32_t kGroupsOf32 = 4;
constexpr uint32_t kGroupsOf32ManyRows = 2;
constexpr uint32_t kGroupsOf64 = 1;

// What a call works on.
struct Shape {
  uint32_t num_tokens;  // M
  uint32_t num_rows;    // N
  uint32_t depth;       // K
};

// One call.
struct CallArguments {
  Shape shape;
  uint32_t is_whole;             // addresses and rows suit 16-byte vectors
  uint32_t num_producers;        // warps that load weights, of `specialised` and `tuned`
  uint32_t num_token_producers;  // warps that load tokens, of these
  uint32_t num_slots;            // of the queue of these
  float scale;                   // of the results
  const uint8_t* tokens;         // [M, K] fp8
  const uint8_t* weights;        // [N, K] fp8
  uint16_t* out;                 // [M, N] fp16
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;                   // of this rank
};

}  // namespace skinny_gemm
