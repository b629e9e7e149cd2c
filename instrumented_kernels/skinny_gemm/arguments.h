// Generated from instrumented_kernels/skinny_gemm/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "shared_layouts.h"

namespace skinny_gemm {

constexpr uint32_t kRingWarpsOf32 = 8;
constexpr uint32_t kRingWarpsOf64 = 3;

// What a call works on.
struct Shape {
  uint32_t num_tokens;  // M
  uint32_t num_rows;  // N
  uint32_t depth;  // K
};
static_assert(sizeof(Shape) == 12, "Shape size");
static_assert(offsetof(Shape, num_tokens) == 0, "Shape.num_tokens");
static_assert(offsetof(Shape, num_rows) == 4, "Shape.num_rows");
static_assert(offsetof(Shape, depth) == 8, "Shape.depth");

// One call.
struct CallArguments {
  Shape shape;
  uint32_t is_whole;  // addresses and rows suit 16-byte vectors
  uint32_t num_producers;  // warps that load weights, of `specialised` and `tuned`
  uint32_t num_token_producers;  // warps that load tokens, of these
  uint32_t num_slots;  // of the queue of these
  float scale;  // of the results
  const uint8_t* tokens;  // [M, K] fp8
  const uint8_t* weights;  // [N, K] fp8
  uint16_t* out;  // [M, N] fp16
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;
};
static_assert(sizeof(CallArguments) == 80, "CallArguments size");
static_assert(offsetof(CallArguments, shape) == 0, "CallArguments.shape");
static_assert(offsetof(CallArguments, is_whole) == 12, "CallArguments.is_whole");
static_assert(offsetof(CallArguments, num_producers) == 16, "CallArguments.num_producers");
static_assert(offsetof(CallArguments, num_token_producers) == 20, "CallArguments.num_token_producers");
static_assert(offsetof(CallArguments, num_slots) == 24, "CallArguments.num_slots");
static_assert(offsetof(CallArguments, scale) == 28, "CallArguments.scale");
static_assert(offsetof(CallArguments, tokens) == 32, "CallArguments.tokens");
static_assert(offsetof(CallArguments, weights) == 40, "CallArguments.weights");
static_assert(offsetof(CallArguments, out) == 48, "CallArguments.out");
static_assert(offsetof(CallArguments, timeout_ticks) == 56, "CallArguments.timeout_ticks");
static_assert(offsetof(CallArguments, failure) == 64, "CallArguments.failure");
static_assert(offsetof(CallArguments, workspace) == 72, "CallArguments.workspace");

}  // namespace skinny_gemm
