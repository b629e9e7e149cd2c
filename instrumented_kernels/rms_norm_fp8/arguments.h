// Generated from instrumented_kernels/rms_norm_fp8/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "shared_layouts.h"

namespace rms_norm_fp8 {

constexpr uint32_t kKeptElements = 16384;

// What a call works on.
struct Shape {
  uint32_t num_rows;
  uint32_t row_length;  // d
};
static_assert(sizeof(Shape) == 8, "Shape size");
static_assert(offsetof(Shape, num_rows) == 0, "Shape.num_rows");
static_assert(offsetof(Shape, row_length) == 4, "Shape.row_length");

// One call.
struct CallArguments {
  Shape shape;
  uint32_t team_warps;  // that work on a row
  uint32_t is_whole;  // addresses and rows suit 16-byte vectors
  float scale;  // of the fp8 values
  float epsilon;
  const void* x;  // [n, d]
  const void* residual;  // [n, d]
  const void* weight;  // [d]
  void* sum;  // [n, d]: x + residual; may be either of them
  uint8_t* y;  // [n, d] fp8
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;
};
static_assert(sizeof(CallArguments) == 88, "CallArguments size");
static_assert(offsetof(CallArguments, shape) == 0, "CallArguments.shape");
static_assert(offsetof(CallArguments, team_warps) == 8, "CallArguments.team_warps");
static_assert(offsetof(CallArguments, is_whole) == 12, "CallArguments.is_whole");
static_assert(offsetof(CallArguments, scale) == 16, "CallArguments.scale");
static_assert(offsetof(CallArguments, epsilon) == 20, "CallArguments.epsilon");
static_assert(offsetof(CallArguments, x) == 24, "CallArguments.x");
static_assert(offsetof(CallArguments, residual) == 32, "CallArguments.residual");
static_assert(offsetof(CallArguments, weight) == 40, "CallArguments.weight");
static_assert(offsetof(CallArguments, sum) == 48, "CallArguments.sum");
static_assert(offsetof(CallArguments, y) == 56, "CallArguments.y");
static_assert(offsetof(CallArguments, timeout_ticks) == 64, "CallArguments.timeout_ticks");
static_assert(offsetof(CallArguments, failure) == 72, "CallArguments.failure");
static_assert(offsetof(CallArguments, workspace) == 80, "CallArguments.workspace");

}  // namespace rms_norm_fp8
