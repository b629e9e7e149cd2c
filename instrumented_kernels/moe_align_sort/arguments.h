// Generated from instrumented_kernels/moe_align_sort/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stddef.h>
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
static_assert(offsetof(Shape, num_ids) == 0, "Shape.num_ids");
static_assert(offsetof(Shape, num_experts) == 4, "Shape.num_experts");
static_assert(offsetof(Shape, num_slices) == 8, "Shape.num_slices");

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
  char* workspace;
};
static_assert(sizeof(CallArguments) == 88, "CallArguments size");
static_assert(offsetof(CallArguments, shape) == 0, "CallArguments.shape");
static_assert(offsetof(CallArguments, block_size) == 12, "CallArguments.block_size");
static_assert(offsetof(CallArguments, slice_ids) == 16, "CallArguments.slice_ids");
static_assert(offsetof(CallArguments, num_sorted) == 20, "CallArguments.num_sorted");
static_assert(offsetof(CallArguments, num_block_experts) == 24, "CallArguments.num_block_experts");
static_assert(offsetof(CallArguments, topk_ids) == 32, "CallArguments.topk_ids");
static_assert(offsetof(CallArguments, sorted_ids) == 40, "CallArguments.sorted_ids");
static_assert(offsetof(CallArguments, block_experts) == 48, "CallArguments.block_experts");
static_assert(offsetof(CallArguments, num_padded) == 56, "CallArguments.num_padded");
static_assert(offsetof(CallArguments, timeout_ticks) == 64, "CallArguments.timeout_ticks");
static_assert(offsetof(CallArguments, failure) == 72, "CallArguments.failure");
static_assert(offsetof(CallArguments, workspace) == 80, "CallArguments.workspace");

}  // namespace moe_align_sort
