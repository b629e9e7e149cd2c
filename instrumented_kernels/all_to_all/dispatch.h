// Dispatch with a flag per row: token_flags, fused and balanced.
#pragma once

#include "partition.h"

namespace all_to_all {

// Whether the expert of a flat token exists and is not among the token's experts before it. Other entries are not sent,
// so that no address depends on them and nothing overflows.
KPROF_DEVICE bool is_routable(const Call& call, uint32_t flat_token) {
  const int32_t expert = call.indices[flat_token];
  bool is_new = static_cast<uint32_t>(expert) < call.shape.num_experts;
  for (uint32_t before = flat_token - flat_token % call.shape.top_k; before < flat_token; ++before)
    is_new = is_new && call.indices[before] != expert;
  return is_new;
}

// One lane reports an expert that is not routable to the host (one of them, if there are several), and makes sure that
// nobody waits for the row.
KPROF_DEVICE void refuse(const Call& call, uint32_t flat_token) {
  const uint64_t expert = static_cast<uint32_t>(call.indices[flat_token]);
  store_system(&call.failure->refused, static_cast<uint64_t>(flat_token + 1) << 32 | expert);
  store_system(call.combine_flag(call.rank, flat_token), call.epoch());
}

// Called by one block, in a launch in which no other block uses them.
KPROF_DEVICE void clear_expert_counts(uint32_t* counts, const Call& call) {
  for (uint32_t e = thread_id(); e < experts_per_rank(call.shape); e += num_threads()) counts[e] = 0;
}

// Block 0 tells all ranks how many rows they will get, before the rows leave.
KPROF_DEVICE void count_and_send(const Call& call, kprof::Track& track) {
  KPROF_SHARED(uint32_t, counts, kMaxRanks);
  kprof::Span span = profile_start(track);
  for (uint32_t r = thread_id(); r < call.shape.world_size; r += num_threads()) counts[r] = 0;
  clear_expert_counts(call.expert_counts(), call);
  sync_block();
  for (uint32_t flat = thread_id(); flat < call.num_flat_tokens(); flat += num_threads()) {
    const bool counts_in = is_routable(call, flat);
    const uint32_t expert = counts_in ? static_cast<uint32_t>(call.indices[flat]) : 0;
    add_device(&counts[call.rank_of_expert(expert)], counts_in ? 1u : 0u);
  }
  sync_block();
  span = profile_lap(track, span, R_COUNT, payload<R_COUNT>(call.num_flat_tokens()));
  for (uint32_t peer = warp_id(); peer < call.shape.world_size; peer += warps_per_block()) {
    // The count is in the flag itself, so one relaxed store is enough.
    if (lane_id() == 0)
      store_system(call.counts_flag(peer, call.rank), static_cast<uint64_t>(call.epoch()) << 32 | counts[peer]);
    span = profile_lap(track, span, R_SEND_COUNTS, payload<R_SEND_COUNTS>(peer, 0u));
  }
}

// Block 0 waits for every source's count, which the next launch needs, after all rows have left.
KPROF_DEVICE void wait_for_counts(const ProfiledCall& call, kprof::Track& track) {
  for (uint32_t peer = warp_id(); peer < call.shape.world_size; peer += warps_per_block()) {
    const uint64_t* flag = call.counts_flag(call.rank, peer);
    const kprof::Span span = profile_start(track);
    signals::wait_warp([flag] { return static_cast<uint32_t>(load_system(flag) >> 32); }, call.epoch(), call.limits(),
                       {R_WAIT_COUNTS, peer, 0});
    profile_stop(track, span, R_WAIT_COUNTS, payload<R_WAIT_COUNTS>(peer, 0u));
  }
}

// A row of the stream to `peer`.
struct SentRow {
  uint32_t peer;
  uint32_t position;
};

// One warp moves the row and origin of one (token, k) to its expert's rank. False if the expert does not exist.
KPROF_DEVICE bool move_row(const Call& call, uint32_t flat_token, SentRow* row) {
  if (!is_routable(call, flat_token)) {
    if (lane_id() == 0) refuse(call, flat_token);
    return false;
  }
  const uint32_t expert = static_cast<uint32_t>(call.indices[flat_token]);
  const uint32_t peer = call.rank_of_expert(expert);
  uint32_t position = 0;
  if (lane_id() == 0) position = add_device(&call.send_counts()[peer], 1u);
  position = broadcast(position);
  const uint16_t* source = call.x + static_cast<uint64_t>(flat_token / call.shape.top_k) * call.shape.hidden;
  rows::copy(call.row(peer, call.rank, position), source, call.shape.hidden);
  if (lane_id() == 0) *call.row_origin(peer, call.rank, position) = {flat_token, expert % experts_per_rank(call.shape)};
  *row = {peer, position};
  return true;
}

__global__ void dispatch_send(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  // Block 0 counts, the others send. A single block does both in turn.
  const uint32_t num_counting = num_blocks() > 1 ? 1 : 0;
  if (block_id() == 0) count_and_send(call, track);
  if (block_id() >= num_counting) {
    const uint32_t num_sending = num_blocks() - num_counting;
    const uint32_t first = warp_id() * num_sending + block_id() - num_counting;
    for (uint32_t flat = first; flat < call.num_flat_tokens(); flat += num_sending * warps_per_block()) {
      const kprof::Span span = profile_start(track);
      SentRow row;
      if (!move_row(call, flat, &row)) continue;
      signals::publish_warp(call.row_flag(row.peer, call.rank, row.position), call.epoch());
      profile_stop(track, span, R_DISPATCH_SEND, payload<R_DISPATCH_SEND>(row.peer, row.position));
    }
  }
  if (block_id() == 0) wait_for_counts(call, track);
}

// One warp copies a row that has arrived behind the other rows of its expert.
KPROF_DEVICE void take_row(const Call& call, uint32_t source, uint32_t position) {
  const RowOrigin origin = *call.row_origin(call.rank, source, position);
  uint32_t row = 0;
  if (lane_id() == 0) row = add_device(&call.expert_counts()[origin.place], 1u);
  row = broadcast(row);
  rows::copy(call.expert_row(origin.place, row), call.row(call.rank, source, position), call.shape.hidden);
  if (lane_id() == 0) *call.expert_origin(origin.place, row) = {origin.flat_token, source};
}

// One warp receives one row: waits for its flag, then copies it.
KPROF_DEVICE bool receive_row(const ProfiledCall& call, uint32_t source, uint32_t position, kprof::Track& track) {
  const uint32_t* flag = call.row_flag(call.rank, source, position);
  kprof::Span span = profile_start(track);
  const bool has_arrived = signals::wait_warp([flag] { return load_system(flag); }, call.epoch(), call.limits(),
                                              {R_DISPATCH_WAIT, source, position});
  span = profile_lap(track, span, R_DISPATCH_WAIT, payload<R_DISPATCH_WAIT>(source, position));
  if (!has_arrived) return false;
  take_row(call, source, position);
  profile_stop(track, span, R_DISPATCH_COPY, payload<R_DISPATCH_COPY>(source, call.row_bytes()));
  return true;
}

// Nobody sends any more, so restore the zeros for the next call.
KPROF_DEVICE void clear_send_counts(const Call& call) {
  if (block_id() != 0) return;
  for (uint32_t r = thread_id(); r < call.shape.world_size; r += num_threads()) call.send_counts()[r] = 0;
}

template <Partition partition>
__global__ void dispatch_recv(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  clear_send_counts(call);
  const auto num_rows = [&](uint32_t source) {
    return static_cast<uint32_t>(load_system(call.counts_flag(call.rank, source)));
  };
  const auto receive = [&](uint32_t source, uint32_t i) { return receive_row(call, source, i, track); };
  if constexpr (partition == Partition::kFlattened) {
    partition_flattened(call.shape.world_size, num_rows, receive);
  } else {
    partition_sources(call.shape.world_size, num_rows, receive);
  }
}

}  // namespace all_to_all
