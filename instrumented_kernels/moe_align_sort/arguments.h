// A call: what plan.py fills in, and the kernels read. Python reads the declarations (instrumented_kernels/layouts.py).
#pragma once

#include "shared_layouts.h"

namespace moe_align_sort {

constexpr uint32_t kMaxExperts = 1024;
// Up to this many experts use the kernels with larger tiles.
constexpr uint32_t kFewExperts = 256;

// What the memory of a call is made for.
struct Shape {
  uint32_t num_ids;  // n * K
  uint32_t num_experts;
  uint32_t num_slices;  // parts of the ids, a block each
};

// One call.
struct CallArguments {
  Shape shape;
  uint32_t block_size;         // B: runs of experts are padded to a multiple
  uint32_t slice_ids;          // ids of a slice, of the last one fewer
  uint32_t num_sorted;         // room in sorted_ids
  uint32_t num_block_experts;  // room in block_experts
  const int32_t* topk_ids;     // [num_ids]
  int32_t* sorted_ids;         // [num_sorted]: (token, k) by expert; num_ids where there is none
  int32_t* block_experts;      // [num_block_experts]; -1 behind the padded total
  int32_t* num_padded;         // [1]
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;                   // of this rank
};

}  // namespace moe_align_sort
