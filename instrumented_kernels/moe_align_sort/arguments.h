// Generated from instrumented_kernels/moe_align_sort/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stdint.h>
#include "shared_layouts.h"

namespace moe_align_sort {

constexpr uint32_t kMaxExperts = 1024;
constexpr uint32_t kFewExperts = 256;

// What the memory of a call is made for.
struct Shape {
  uint32_t num_ids;  // n * K
  uint32_t num_experts;
  uint32_t num_slices;  // parts of the ids, a block each
};
static_assert(sizeof(Shape) == 12, "Shape size");

// One call.
struct CallArguments {
  Shape shape;
  uint32_t block_size;  // B: runs of experts are padded to a multiple
  uint32_t slice_ids;  // ids of a slice, of the last one fewer
  uint32_t num_sorted;  // room in sorted_ids
  uint32_t num_block_experts;  // room in block_experts
  const int32_t* topk_ids;  // [num_ids]
  int32_t* sorted_ids;  // [num_sorted]: (token, k) by expert; num_ids where there is none
  int32_t* block_experts;  // [num_block_experts]; -1 behind the padded total
  int32_t* num_padded;  // [1]
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;  // of this rank
};
static_assert(sizeof(CallArguments) == 88, "CallArguments size");

}  // namespace moe_align_sort
