// Generated from instrumented_kernels/rms_norm_fp8/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

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
  char* workspace;  // of this rank
};
static_assert(sizeof(CallArguments) == 88, "CallArguments size");

}  // namespace rms_norm_fp8
