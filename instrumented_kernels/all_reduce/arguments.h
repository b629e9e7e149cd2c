// A call: what plan.py fills in, and the kernels read. Python reads the declarations (instrumented_kernels/layouts.py).
#pragma once

#include "shared_layouts.h"

namespace all_reduce {

// The limit of the regions' payload fields, and of the flags per source.
constexpr uint32_t kMaxBlocks = 254;
// The grid that a variant is made for.
enum GridRule : uint32_t { kAnyGrid = 0, kOneBlock = 1, kBlockPerRank = 2 };

// What the memory of a plan is made for.
struct Shape {
  uint32_t world_size;
  uint32_t packet_bytes;  // of the heap, for one parity
  uint32_t bulk_bytes;    // of the heap, for one parity
};

// One call on one rank. Nothing in it changes from call to call on the same tensor.
struct CallArguments {
  Shape shape;
  uint32_t rank;
  uint32_t num_elements;
  const void* input;
  void* output;  // may be the input; no other overlap
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;        // in memory of the host
  char* workspace;                         // of this rank
  char* heaps[shared_layouts::kMaxRanks];  // every rank's heap, as this rank sees it
};

}  // namespace all_reduce
