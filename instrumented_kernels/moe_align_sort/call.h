// One call, and the layout of its workspace.
#pragma once

#include <kprof/compute.h>

#include "kernel.h"
#include "local_call.h"

namespace moe_align_sort {

using namespace kernel;
using memory_layout::Offset;

// `clear` zeroes the first pieces.
struct WorkspaceLayout {
  Offset has_failed;   // u32
  Offset num_refused;  // u32: ids that name no expert
  Offset arrivals;     // u32 [2]: blocks that have come to a barrier
  Offset totals;       // u32 [E]: ids of an expert
  Offset end_of_zeros;
  Offset counts;  // u32 [num_slices][E]: ids of an expert in a slice; with flags, in `chained`
  Offset end;

  explicit WorkspaceLayout(const Shape& shape) {
    memory_layout::Cursor cursor;
    has_failed = cursor.take(sizeof(uint32_t));
    num_refused = cursor.take(sizeof(uint32_t));
    arrivals = cursor.take(2 * sizeof(uint32_t));
    totals = cursor.take(uint64_t{shape.num_experts} * sizeof(uint32_t));
    end_of_zeros = cursor.end();
    counts = cursor.take(uint64_t{shape.num_slices} * shape.num_experts * sizeof(uint32_t));
    end = cursor.end();
  }
};

struct Call : local_call::LocalCall<CallArguments, WorkspaceLayout> {
  using LocalCall::LocalCall;

  KPROF_DEVICE uint32_t* totals() const { return in_workspace<uint32_t>(local.totals); }
  KPROF_DEVICE uint32_t* counts_of(uint32_t slice) const {
    return in_workspace<uint32_t>(local.counts) + static_cast<uint64_t>(slice) * shape.num_experts;
  }
  KPROF_DEVICE Range slice(uint32_t number) const {
    const uint64_t begin = static_cast<uint64_t>(number) * slice_ids;
    const uint64_t end = begin + slice_ids;
    return {static_cast<uint32_t>(begin < shape.num_ids ? begin : shape.num_ids),
            static_cast<uint32_t>(end < shape.num_ids ? end : shape.num_ids)};
  }
};

using ProfiledCall = variants::Profiled<Call>;

}  // namespace moe_align_sort
