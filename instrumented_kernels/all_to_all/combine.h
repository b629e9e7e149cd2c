// The placeholder for the expert, and combine with a flag per row: token_flags, fused and balanced.
#pragma once

#include "partition.h"

namespace all_to_all {

// y = x * (1 + rank), rounded to fp16: cheap, and shows when a row went to the wrong rank.
KPROF_DEVICE float expert_factor(const Call& call) { return 1.0f + static_cast<float>(call.rank); }

__global__ void expert(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  for_each_expert_row<Partition::kByGroup>(call, [&](uint32_t local_expert, uint32_t row) {
    const kprof::Span span = profile_start(track);
    uint16_t* values = call.expert_row(local_expert, row);
    rows::scale(values, values, call.shape.hidden, expert_factor(call));
    profile_stop(track, span, R_EXPERT, payload<R_EXPERT>(local_expert, row));
  });
}

// One warp writes one expert's row to its token's rank. `has_expert` applies the expert on the way.
template <bool has_expert>
KPROF_DEVICE RowOrigin return_row(const Call& call, uint32_t local_expert, uint32_t row) {
  const RowOrigin origin = *call.expert_origin(local_expert, row);
  uint16_t* target = call.combine_row(origin.place, origin.flat_token);
  const uint16_t* source = call.expert_row(local_expert, row);
  if constexpr (has_expert) {
    rows::scale(target, source, call.shape.hidden, expert_factor(call));
  } else {
    rows::copy(target, source, call.shape.hidden);
  }
  return origin;
}

template <Partition partition, bool has_expert>
__global__ void combine_send(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  for_each_expert_row<partition>(call, [&](uint32_t local_expert, uint32_t row) {
    const kprof::Span span = profile_start(track);
    const RowOrigin origin = return_row<has_expert>(call, local_expert, row);
    signals::publish_warp(call.combine_flag(origin.place, origin.flat_token), call.epoch());
    profile_stop(track, span, R_COMBINE_SEND, payload<R_COMBINE_SEND>(origin.place, origin.flat_token));
  });
}

// Computes a part of out[token] from the rows that have come back.
KPROF_DEVICE void reduce_token(const Call& call, uint32_t token, rows::Part part) {
  const uint32_t first_flat = token * call.shape.top_k;
  rows::weighted_sum(
      call.out + static_cast<uint64_t>(token) * call.shape.hidden,
      [&](uint32_t k) { return call.combine_row(call.rank, first_flat + k); }, call.weights + first_flat,
      call.shape.top_k, part);
}

KPROF_DEVICE uint32_t bytes_reduced(const Call& call, rows::Part part) {
  return call.shape.top_k * (part.end - part.begin) * static_cast<uint32_t>(sizeof(uint16_t));
}

// The number of elements of a row per warp, so that all tokens together are at most one part per warp.
KPROF_DEVICE uint32_t elements_per_part(const Call& call) {
  const uint32_t warps_per_token = call.num_tokens < num_grid_warps() ? num_grid_warps() / call.num_tokens : 1;
  const uint32_t num_steps = (call.shape.hidden + rows::vectors_step() - 1) / rows::vectors_step();
  return (num_steps + warps_per_token - 1) / warps_per_token * rows::vectors_step();
}

// Calls `work(token, part)` for this warp's share of all tokens' rows, cut into parts. With a warp per token most warps
// would have no work, and one warp alone would reduce the last token that comes back.
template <typename Work>
KPROF_DEVICE void for_each_part(const Call& call, Work work) {
  if (call.num_tokens == 0) return;
  const uint32_t part_size = elements_per_part(call);
  const uint32_t num_parts = (call.shape.hidden + part_size - 1) / part_size;
  for (uint32_t i = grid_warp(); i < call.num_tokens * num_parts; i += num_grid_warps()) {
    const uint32_t begin = i % num_parts * part_size;
    const uint32_t left = call.shape.hidden - begin;
    if (!work(i / num_parts, rows::Part{begin, begin + (left < part_size ? left : part_size)})) return;
  }
}

// The meaning of the `slot` of a returning row.
enum class Slot {
  kFlatToken,  // each row is sent by itself
  kToken,      // a rank sends all rows of a token at once
};

// Waits for all rows of a token together, records only the last one, and sums them in the order of k.
template <Slot slot>
KPROF_DEVICE bool reduce_part(const ProfiledCall& call, uint32_t token, rows::Part part, kprof::Track& track) {
  const uint32_t first_flat = token * call.shape.top_k;
  const auto peer = [&](uint32_t k) {
    return call.rank_of_expert(static_cast<uint32_t>(call.indices[first_flat + k]));
  };
  const auto slot_of = [&](uint32_t k) { return slot == Slot::kToken ? token : first_flat + k; };
  kprof::Span span = profile_start(track);
  const signals::WaitedForAll waited = signals::wait_all_warp(
      call.shape.top_k, [&](uint32_t k) { return load_system(call.combine_flag(call.rank, first_flat + k)); },
      call.epoch(), call.limits(), [&](uint32_t k) { return signals::Waited{R_COMBINE_WAIT, peer(k), slot_of(k)}; });
  span = profile_lap(track, span, R_COMBINE_WAIT, payload<R_COMBINE_WAIT>(peer(waited.last), slot_of(waited.last)));
  if (!waited.have_arrived) return false;
  reduce_token(call, token, part);
  profile_stop(track, span, R_COMBINE_REDUCE, payload<R_COMBINE_REDUCE>(bytes_reduced(call, part)));
  return true;
}

// Waits for the rows of a token one after the other, then sums them in the order of k.
KPROF_DEVICE bool reduce_row_by_row(const ProfiledCall& call, uint32_t token, kprof::Track& track) {
  const uint32_t first_flat = token * call.shape.top_k;
  kprof::Span span = profile_start(track);
  for (uint32_t flat = first_flat; flat < first_flat + call.shape.top_k; ++flat) {
    const uint32_t peer = call.rank_of_expert(static_cast<uint32_t>(call.indices[flat]));
    const uint32_t* flag = call.combine_flag(call.rank, flat);
    const bool has_arrived = signals::wait_warp([flag] { return load_system(flag); }, call.epoch(), call.limits(),
                                                {R_COMBINE_WAIT, peer, flat});
    span = profile_lap(track, span, R_COMBINE_WAIT, payload<R_COMBINE_WAIT>(peer, flat));
    if (!has_arrived) return false;
  }
  const rows::Part row = {0, call.shape.hidden};
  reduce_token(call, token, row);
  profile_stop(track, span, R_COMBINE_REDUCE, payload<R_COMBINE_REDUCE>(bytes_reduced(call, row)));
  return true;
}

// Either a warp per token, which waits for its rows one after the other, or a warp per part of a token's row.
template <Partition partition>
__global__ void combine_recv(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  if constexpr (partition == Partition::kFlattened) {
    for_each_part(
        call, [&](uint32_t token, rows::Part part) { return reduce_part<Slot::kFlatToken>(call, token, part, track); });
  } else {
    for (uint32_t token = grid_warp(); token < call.num_tokens; token += num_grid_warps())
      if (!reduce_row_by_row(call, token, track)) return;
  }
}

}  // namespace all_to_all
