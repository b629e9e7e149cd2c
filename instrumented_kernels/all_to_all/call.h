// A call as kernels see it: its arguments, and pointers to everything that it uses.
#pragma once

#include "kernel.h"
#include "layout.h"
#include "rows.h"
#include "signals.h"
#include "team_call.h"

namespace all_to_all {

using namespace kernel;
using shared_layouts::kMaxRanks;

struct Call : team_call::TeamCall<CallArguments, HeapLayout, WorkspaceLayout> {
  using TeamCall::TeamCall;

  KPROF_DEVICE uint32_t* num_counted() const { return in_workspace<uint32_t>(local.num_counted); }
  // The number of the call, the same in all of its launches. A graph replays the same arguments, so calls in graphs are
  // counted on the device: count_call is the last launch of each.
  KPROF_DEVICE uint32_t epoch() const { return is_counted != 0 ? first_epoch + *num_counted() : first_epoch; }
  KPROF_DEVICE uint32_t parity() const { return epoch() & 1u; }
  KPROF_DEVICE uint32_t num_flat_tokens() const { return num_tokens * shape.top_k; }
  KPROF_DEVICE uint32_t row_bytes() const { return shape.hidden * static_cast<uint32_t>(sizeof(uint16_t)); }
  KPROF_DEVICE uint32_t rank_of_expert(uint32_t expert) const { return expert / experts_per_rank(shape); }

  // Rows from `source` in the heap of `owner`, for this epoch.
  KPROF_DEVICE uint64_t pair_row(uint32_t source, uint32_t position) const {
    return (static_cast<uint64_t>(parity()) * shape.world_size + source) * max_rows_per_pair(shape) + position;
  }
  // Tokens of `source` in the heap of its peers, for this epoch.
  KPROF_DEVICE uint64_t pair_token(uint32_t source, uint32_t token) const {
    return (static_cast<uint64_t>(parity()) * shape.world_size + source) * shape.max_tokens + token;
  }
  KPROF_DEVICE uint64_t* counts_flag(uint32_t owner, uint32_t source) const {
    return at<uint64_t>(owner, heap.counts) + parity() * shape.world_size + source;
  }
  KPROF_DEVICE uint32_t* rank_flag(uint32_t owner, uint32_t source) const {
    return at<uint32_t>(owner, heap.rank_flags) + parity() * shape.world_size + source;
  }
  KPROF_DEVICE uint64_t* token_flag(uint32_t owner, uint32_t source, uint32_t token) const {
    return at<uint64_t>(owner, heap.token_flags) + pair_token(source, token);
  }
  KPROF_DEVICE RowOrigin* token_entries(uint32_t owner, uint32_t source, uint32_t token) const {
    return at<RowOrigin>(owner, heap.token_entries) + pair_token(source, token) * max_entries(shape);
  }
  KPROF_DEVICE uint32_t* row_flag(uint32_t owner, uint32_t source, uint32_t position) const {
    return at<uint32_t>(owner, heap.row_flags) + pair_row(source, position);
  }
  KPROF_DEVICE RowOrigin* row_origin(uint32_t owner, uint32_t source, uint32_t position) const {
    return at<RowOrigin>(owner, heap.row_origins) + pair_row(source, position);
  }
  KPROF_DEVICE uint16_t* row(uint32_t owner, uint32_t source, uint32_t position) const {
    return at<uint16_t>(owner, heap.rows) + pair_row(source, position) * row_stride(shape);
  }
  KPROF_DEVICE uint32_t* combine_flag(uint32_t owner, uint32_t flat_token) const {
    return at<uint32_t>(owner, heap.combine_flags) + parity() * max_flat_tokens(shape) + flat_token;
  }
  KPROF_DEVICE uint16_t* combine_row(uint32_t owner, uint32_t flat_token) const {
    const uint64_t row = static_cast<uint64_t>(parity()) * max_flat_tokens(shape) + flat_token;
    return at<uint16_t>(owner, heap.combine_rows) + row * row_stride(shape);
  }

  KPROF_DEVICE uint32_t* send_counts() const { return in_workspace<uint32_t>(local.send_counts); }
  KPROF_DEVICE uint32_t* expert_counts() const { return expert_counts_of(epoch() & 1u); }
  KPROF_DEVICE uint32_t* next_expert_counts() const { return expert_counts_of(~epoch() & 1u); }
  KPROF_DEVICE RowOrigin* expert_origin(uint32_t local_expert, uint32_t row) const {
    return in_workspace<RowOrigin>(local.expert_origins) + expert_row_idx(local_expert, row);
  }
  KPROF_DEVICE uint32_t* expert_place(uint32_t local_expert, uint32_t row) const {
    return in_workspace<uint32_t>(local.expert_places) + expert_row_idx(local_expert, row);
  }
  KPROF_DEVICE uint16_t* expert_row(uint32_t local_expert, uint32_t row) const {
    return in_workspace<uint16_t>(local.expert_rows) + expert_row_idx(local_expert, row) * row_stride(shape);
  }

 private:
  KPROF_DEVICE uint32_t* expert_counts_of(uint32_t which) const {
    return in_workspace<uint32_t>(local.expert_counts) + which * experts_per_rank(shape);
  }
  KPROF_DEVICE uint64_t expert_row_idx(uint32_t local_expert, uint32_t row) const {
    return static_cast<uint64_t>(local_expert) * max_rows_per_expert(shape) + row;
  }
};

using ProfiledCall = variants::Profiled<Call>;

}  // namespace all_to_all
