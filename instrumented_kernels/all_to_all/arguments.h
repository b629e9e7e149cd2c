// A call: what plan.py fills in, and the kernels read. Python reads the declarations (instrumented_kernels/layouts.py).
#pragma once

#include "shared_layouts.h"

namespace all_to_all {

// What the memory of a plan is made for.
struct Shape {
  uint32_t num_experts;
  uint32_t top_k;
  uint32_t hidden;      // D, elements of a row
  uint32_t max_tokens;  // M, per rank
  uint32_t world_size;
};

// One call on one rank.
struct CallArguments {
  Shape shape;
  uint32_t rank;
  uint32_t num_tokens;     // n <= M
  uint32_t first_epoch;    // the number of the call, from 1; with `is_counted` that of the first counted one
  uint32_t is_counted;     // whether calls are counted on the device, as in a graph
  const uint16_t* x;       // fp16 [n, D]
  const int32_t* indices;  // [n, K], distinct in a row
  const float* weights;    // [n, K]
  uint16_t* out;           // fp16 [n, D]
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;        // in memory of the host
  char* workspace;                         // of this rank
  char* heaps[shared_layouts::kMaxRanks];  // every rank's heap, as this rank sees it
};

}  // namespace all_to_all
