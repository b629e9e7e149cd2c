// rank_flags: one flag per (source, destination). The end of a launch separates a rank's rows from its flag, so a
// receiver waits for a source's slowest row before it can use the first. One block serves a source, so W blocks work
// and all others are idle.
#pragma once

#include "combine.h"
#include "dispatch.h"

namespace all_to_all {

__global__ void dispatch_send_rows(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  if (block_id() == 0) clear_expert_counts(call.expert_counts(), call);
  for (uint32_t flat = grid_warp(); flat < call.num_flat_tokens(); flat += num_grid_warps()) {
    const kprof::Span span = profile_start(track);
    SentRow row;
    if (!move_row(call, flat, &row)) continue;
    profile_stop(track, span, R_DISPATCH_SEND, payload<R_DISPATCH_SEND>(row.peer, row.position));
  }
  fence_release_system();
}

// Calls `store(peer)` once for every rank, in a separate launch, when all rows have been written.
template <typename Store>
KPROF_DEVICE void tell_peers(const Call& call, uint32_t region, kprof::Track& track, Store store) {
  for (uint32_t peer = grid_warp(); peer < call.shape.world_size; peer += num_grid_warps()) {
    const kprof::Span span = profile_start(track);
    signals::release_warp();
    if (lane_id() == 0) store(peer);
    profile_stop(track, span, region, payload<R_DISPATCH_FLAG>(peer, 0u));
  }
}

__global__ void dispatch_flag(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  // The flag contains the number of rows.
  tell_peers(call, R_DISPATCH_FLAG, track, [&](uint32_t peer) {
    store_system(call.counts_flag(peer, call.rank),
                 static_cast<uint64_t>(call.epoch()) << 32 | call.send_counts()[peer]);
  });
}

// One block receives all rows of a source, after the source's flag has arrived.
KPROF_DEVICE bool receive_from(const ProfiledCall& call, uint32_t source, kprof::Track& track) {
  const uint64_t* flag = call.counts_flag(call.rank, source);
  kprof::Span span = profile_start(track);
  const bool has_arrived = signals::wait_warp([flag] { return static_cast<uint32_t>(load_system(flag) >> 32); },
                                              call.epoch(), call.limits(), {R_DISPATCH_WAIT_FLAG, source, 0});
  span = profile_lap(track, span, R_DISPATCH_WAIT_FLAG, payload<R_DISPATCH_WAIT_FLAG>(source, 0u));
  if (!has_arrived) return false;
  const uint32_t num_rows = static_cast<uint32_t>(load_system(flag));
  for (uint32_t position = warp_id(); position < num_rows; position += warps_per_block()) {
    take_row(call, source, position);
    span = profile_lap(track, span, R_DISPATCH_COPY, payload<R_DISPATCH_COPY>(source, call.row_bytes()));
  }
  return true;
}

__global__ void dispatch_recv_ranks(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  clear_send_counts(call);
  for (uint32_t source = block_id(); source < call.shape.world_size; source += num_blocks())
    if (!receive_from(call, source, track)) return;
}

__global__ void combine_send_rows(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  for_each_expert_row<Partition::kByGroup>(call, [&](uint32_t local_expert, uint32_t row) {
    const kprof::Span span = profile_start(track);
    const RowOrigin origin = return_row<false>(call, local_expert, row);
    profile_stop(track, span, R_COMBINE_SEND, payload<R_COMBINE_SEND>(origin.place, origin.flat_token));
  });
  fence_release_system();
}

__global__ void combine_flag(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  tell_peers(call, R_COMBINE_FLAG, track,
             [&](uint32_t peer) { store_system(call.rank_flag(peer, call.rank), call.epoch()); });
}

__global__ void combine_recv_ranks(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  kprof::Span span = profile_start(track);
  const signals::WaitedForAll waited = signals::wait_all_warp(
      call.shape.world_size, [&](uint32_t peer) { return load_system(call.rank_flag(call.rank, peer)); }, call.epoch(),
      call.limits(), [](uint32_t peer) { return signals::Waited{R_COMBINE_WAIT_FLAG, peer, 0}; });
  span = profile_lap(track, span, R_COMBINE_WAIT_FLAG, payload<R_COMBINE_WAIT_FLAG>(waited.last, 0u));
  if (!waited.have_arrived) return;
  const rows::Part row = {0, call.shape.hidden};
  for (uint32_t token = grid_warp(); token < call.num_tokens; token += num_grid_warps()) {
    reduce_token(call, token, row);
    span = profile_lap(track, span, R_COMBINE_REDUCE, payload<R_COMBINE_REDUCE>(bytes_reduced(call, row)));
  }
}

}  // namespace all_to_all
