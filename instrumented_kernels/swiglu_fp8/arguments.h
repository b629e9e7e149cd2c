// Generated from instrumented_kernels/swiglu_fp8/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stdint.h>
#include "shared_layouts.h"

namespace swiglu_fp8 {

// What a call works on.
struct Shape {
  uint32_t num_rows;
  uint32_t row_length;  // d
};
static_assert(sizeof(Shape) == 8, "Shape size");

// One call.
struct CallArguments {
  Shape shape;
  uint32_t blocks_per_row;
  uint32_t reciprocal;  // of blocks_per_row, times 2^32 - 1, rounded down
  uint32_t is_whole;  // addresses and rows suit 16-byte vectors
  float scale;  // of the fp8 values
  const void* x;  // [n, 2 d]: gate, then up
  uint8_t* y;  // [n, d] fp8
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;  // of this rank
};
static_assert(sizeof(CallArguments) == 64, "CallArguments size");

}  // namespace swiglu_fp8
