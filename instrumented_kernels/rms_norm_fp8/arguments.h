// A call: what plan.py fills in, and the kernels read. Python reads the declarations (instrumented_kernels/layouts.py).
#pragma once

#include "shared_layouts.h"

namespace rms_norm_fp8 {

// The longest row that `shared` keeps in shared memory.
constexpr uint32_t kKeptElements = 16384;

// What a call works on.
struct Shape {
  uint32_t num_rows;
  uint32_t row_length;  // d
};

// One call.
struct CallArguments {
  Shape shape;
  uint32_t team_warps;  // that work on a row
  uint32_t is_whole;    // addresses and rows suit 16-byte vectors
  float scale;          // of the fp8 values
  float epsilon;
  const void* x;         // [n, d]
  const void* residual;  // [n, d]
  const void* weight;    // [d]
  void* sum;             // [n, d]: x + residual; may be either of them
  uint8_t* y;            // [n, d] fp8
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;                   // of this rank
};

}  // namespace rms_norm_fp8
