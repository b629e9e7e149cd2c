// Generated from instrumented_kernels/all_reduce/arguments.py by `python -m instrumented_kernels.layouts`. Do not edit.
#pragma once

#include <stdint.h>
#include "shared_layouts.h"

namespace all_reduce {

constexpr uint32_t kMaxBlocks = 254;
enum GridRule : uint32_t { kAnyGrid = 0, kOneBlock = 1, kBlockPerRank = 2 };

// What the memory of a plan is made for.
struct Shape {
  uint32_t world_size;
  uint32_t packet_bytes;  // of the heap, for one parity
  uint32_t bulk_bytes;  // of the heap, for one parity
};
static_assert(sizeof(Shape) == 12, "Shape size");

// One call on one rank. Nothing in it changes from call to call on the same tensor.
struct CallArguments {
  Shape shape;
  uint32_t rank;
  uint32_t num_elements;
  const void* input;
  void* output;  // may be the input; no other overlap
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;  // in memory of the host
  char* workspace;  // of this rank
  char* heaps[64];  // every rank's heap, as this rank sees it
};
static_assert(sizeof(CallArguments) == 576, "CallArguments size");

}  // namespace all_reduce
