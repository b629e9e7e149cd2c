// Generated from instrumented_kernels/swiglu_fp8/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "shared_layouts.h"

namespace swiglu_fp8 {

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
  uint32_t blocks_per_row;
  uint32_t reciprocal;  // of blocks_per_row, times 2^32 - 1, rounded down
  uint32_t is_whole;  // addresses and rows suit 16-byte vectors
  float scale;  // of the fp8 values
  const void* x;  // [n, 2 d]: gate, then up
  uint8_t* y;  // [n, d] fp8
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;
};
static_assert(sizeof(CallArguments) == 64, "CallArguments size");
static_assert(offsetof(CallArguments, shape) == 0, "CallArguments.shape");
static_assert(offsetof(CallArguments, blocks_per_row) == 8, "CallArguments.blocks_per_row");
static_assert(offsetof(CallArguments, reciprocal) == 12, "CallArguments.reciprocal");
static_assert(offsetof(CallArguments, is_whole) == 16, "CallArguments.is_whole");
static_assert(offsetof(CallArguments, scale) == 20, "CallArguments.scale");
static_assert(offsetof(CallArguments, x) == 24, "CallArguments.x");
static_assert(offsetof(CallArguments, y) == 32, "CallArguments.y");
static_assert(offsetof(CallArguments, timeout_ticks) == 40, "CallArguments.timeout_ticks");
static_assert(offsetof(CallArguments, failure) == 48, "CallArguments.failure");
static_assert(offsetof(CallArguments, workspace) == 56, "CallArguments.workspace");

}  // namespace swiglu_fp8
