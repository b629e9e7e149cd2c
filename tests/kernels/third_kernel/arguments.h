// What a call of the all-gather is.
#pragma once

#include "shared_layouts.h"

namespace all_gather {

struct Shape {
  uint32_t world_size;
};

struct CallArguments {
  Shape shape;
  uint32_t rank;
  uint32_t epoch;
  uint32_t value;
  uint32_t* out;  // [W]
  uint64_t timeout_ticks;
  shared_layouts::Failure* failure;
  char* workspace;
  char* heaps[shared_layouts::kMaxRanks];
};

}  // namespace all_gather
