// A call: what plan.py fills in, and the kernels read. Python reads the declarations (instrumented_kernels/layouts.py).
#pragma once

#include "shared_layouts.h"

namespace swiglu_fp8 {

// What a call works on.
struct Shape {
  uint32_t num_rows;
  uint32_t row_length;  // d
};

// One call.
struct CallArguments {
  Shape shape;
  uint32_t blocks_per_row;
  uint32_t reciprocal;  // of blocks_per_row, times 2^32 - 1, rounded down
  uint32_t is_whole;    // addresses and rows suit 16-byte vectors
  float scale;          // of the fp8 values
  const void* x;        // [n, 2 d]: gate, then up
  uint8_t* y;           // [n, d] fp8
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;                   // of this rank
};

}  // namespace swiglu_fp8
