// pipelined: the whole call in one launch, with no barrier in it.
//
// Every token is a chunk. Some warps of each block loop over the tokens and send them. The others receive tokens, apply
// their experts and send the rows back, while later tokens are still in flight. Then all warps reduce the tokens whose
// rows have come back. Combine of one token overlaps dispatch of the next, on every rank and in both directions of
// every link, and every wait is for data that the waiter needs.
//
// It also saves work. A token goes to a rank once, with the list of its experts there, not once per expert (with 8
// experts per token on 4 ranks, 2.7 rows of 14 KiB leave a rank instead of 6). Nothing is counted before sending: a
// token without an expert on a rank says so in its flag. Rows are not copied into the order of the experts:
// `expert_places` has their locations, and dispatched() gathers them on request.
//
// Rows come back one by one. A rank could add up a token's rows and send the sum. But the sum is defined in the order
// of k with one rounding at the end, and partial sums in fp32 are as large as the rows that they save.
//
// It cannot deadlock: sending waits for nothing, all warps are resident, and every warp sends before it waits.
#pragma once

#include "combine.h"
#include "dispatch.h"

namespace all_to_all {

// One in this many warps sends. Few senders fill the links, and with fewer senders the first tokens arrive earlier; a
// half and an eighth were slower on H200.
constexpr uint32_t kWarpsPerSender = 4;

// Which warps of a block send and which receive. A single warp does both, in this order.
struct Roles {
  uint32_t num_senders;
  uint32_t first_taker;

  KPROF_DEVICE static Roles of_block() {
    const uint32_t num_warps = warps_per_block();
    if (num_warps == 1) return {1, 0};
    const uint32_t num_senders = num_warps < kWarpsPerSender ? 1 : num_warps / kWarpsPerSender;
    return {num_senders, num_senders};
  }
};

// Calls `work(i)` for this warp's share of 0 .. num_items - 1, distributed over the warps `first_warp` .. `end_warp` -
// 1 of all blocks, across blocks first like grid_warp.
template <typename Work>
KPROF_DEVICE void partition_over_warps(uint32_t num_items, uint32_t first_warp, uint32_t end_warp, Work work) {
  if (warp_id() < first_warp || warp_id() >= end_warp) return;
  const uint32_t stride = (end_warp - first_warp) * num_blocks();
  for (uint32_t i = (warp_id() - first_warp) * num_blocks() + block_id(); i < num_items; i += stride)
    if (!work(i)) return;
}

// Sends the list of the token's experts on `peer`, and returns their number.
KPROF_DEVICE uint32_t send_entries(const Call& call, uint32_t peer, uint32_t token) {
  RowOrigin* entries = call.token_entries(peer, call.rank, token);
  uint32_t num_entries = 0;
  for (uint32_t flat = token * call.shape.top_k; flat < (token + 1) * call.shape.top_k; ++flat) {
    const uint32_t expert = static_cast<uint32_t>(call.indices[flat]);
    if (call.rank_of_expert(expert) != peer || !is_routable(call, flat)) continue;
    if (lane_id() == num_entries % warp_width()) entries[num_entries] = {flat, expert % experts_per_rank(call.shape)};
    ++num_entries;
  }
  return num_entries;
}

KPROF_DEVICE uint64_t token_flag_value(const Call& call, uint32_t num_entries) {
  return static_cast<uint64_t>(call.epoch()) << 32 | num_entries;
}

// Checks a token's experts, one per lane.
KPROF_DEVICE void refuse_unroutable(const Call& call, uint32_t token) {
  for (uint32_t k = lane_id(); k < call.shape.top_k; k += warp_width())
    if (const uint32_t flat = token * call.shape.top_k + k; !is_routable(call, flat)) refuse(call, flat);
}

KPROF_DEVICE void send_token(const Call& call, uint32_t peer, uint32_t token, kprof::Track& track) {
  const kprof::Span span = profile_start(track);
  if (peer == call.rank && token < call.num_tokens) refuse_unroutable(call, token);
  uint64_t* flag = call.token_flag(peer, call.rank, token);
  const uint32_t num_entries = token < call.num_tokens ? send_entries(call, peer, token) : 0;
  if (num_entries == 0) {  // nothing to order
    if (lane_id() == 0) store_system(flag, token_flag_value(call, 0));
    return;
  }
  const uint16_t* source = call.x + static_cast<uint64_t>(token) * call.shape.hidden;
  rows::copy(call.row(peer, call.rank, token), source, call.shape.hidden);
  signals::publish_warp(flag, token_flag_value(call, num_entries));
  profile_stop(track, span, R_DISPATCH_SEND, payload<R_DISPATCH_SEND>(peer, token));
}

// Appends one entry to the rows of its expert, as dispatch must do for a real expert.
KPROF_DEVICE void take_entry(const Call& call, uint32_t source, uint32_t token, const RowOrigin& entry) {
  const uint32_t row = add_device(&call.expert_counts()[entry.place], 1u);
  *call.expert_origin(entry.place, row) = {entry.flat_token, source};
  *call.expert_place(entry.place, row) = source * max_rows_per_pair(call.shape) + token;
}

// Applies the experts of up to a warp's width of entries to the token's row and sends the results back, one entry per
// lane.
KPROF_DEVICE void return_rows(const Call& call, uint32_t source, uint32_t token, uint32_t first, uint32_t num_entries) {
  RowOrigin entry = {};
  if (lane_id() < num_entries) {
    entry = call.token_entries(call.rank, source, token)[first + lane_id()];
    take_entry(call, source, token, entry);
  }
  rows::scale_to_each([&](uint32_t i) { return call.combine_row(source, shuffle(entry.flat_token, i)); }, num_entries,
                      call.row(call.rank, source, token), call.shape.hidden, expert_factor(call));
  signals::release_warp();
  if (lane_id() < num_entries) store_system(call.combine_flag(source, entry.flat_token), call.epoch());
}

KPROF_DEVICE bool take_token(const ProfiledCall& call, uint32_t source, uint32_t token, kprof::Track& track) {
  const uint64_t* flag = call.token_flag(call.rank, source, token);
  kprof::Span span = profile_start(track);
  uint64_t seen = 0;
  const auto read = [&] { return static_cast<uint32_t>((seen = load_system(flag)) >> 32); };
  const bool has_arrived = signals::wait_warp(read, call.epoch(), call.limits(), {R_DISPATCH_WAIT, source, token});
  const uint32_t num_entries = broadcast(static_cast<uint32_t>(seen));
  if (has_arrived && num_entries == 0) return true;
  span = profile_lap(track, span, R_DISPATCH_WAIT, payload<R_DISPATCH_WAIT>(source, token));
  if (!has_arrived) return false;
  for (uint32_t first = 0; first < num_entries; first += warp_width()) {
    const uint32_t num_left = num_entries - first;
    return_rows(call, source, token, first, num_left < warp_width() ? num_left : warp_width());
  }
  profile_stop(track, span, R_COMBINE_SEND, payload<R_COMBINE_SEND>(source, token));
  return true;
}

// The peer of item i, of the W items of a token. Every rank starts with a different peer, so that ranks do not all
// write to the same one first. Every round over the blocks also starts with a different one: otherwise, with a multiple
// of W blocks, a block would serve a single peer, and the blocks of a peer with three times the tokens would have three
// times the work.
KPROF_DEVICE uint32_t peer_of(const Call& call, uint32_t i) {
  const uint32_t world_size = call.shape.world_size;
  const uint32_t round = i / world_size * world_size / num_blocks();
  return (i + call.rank + round) % world_size;
}

// 16 warps: the two blocks of eight that a plan takes by default.
__global__ KPROF_LAUNCH_BOUNDS_RESIDENT(512, 16) void pipelined(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_warp);
  const Roles roles = Roles::of_block();
  const uint32_t world_size = call.shape.world_size;
  const uint32_t num_items = call.shape.max_tokens * world_size;
  // Zeroes the last call's counts for the next call.
  if (block_id() == 0) clear_expert_counts(call.next_expert_counts(), call);
  partition_over_warps(num_items, 0, roles.num_senders,
                       [&](uint32_t i) { return send_token(call, peer_of(call, i), i / world_size, track), true; });
  partition_over_warps(num_items, roles.first_taker, warps_per_block(),
                       [&](uint32_t i) { return take_token(call, peer_of(call, i), i / world_size, track); });
  for_each_part(call,
                [&](uint32_t token, rows::Part part) { return reduce_part<Slot::kToken>(call, token, part, track); });
}

// Not part of a call: copies the last call's rows into the order of the experts, for dispatched().
__global__ void gather_expert_rows(ProfiledCall call) {
  for_each_expert_row<Partition::kFlattened>(call, [&](uint32_t local_expert, uint32_t row) {
    const uint32_t place = *call.expert_place(local_expert, row);
    const uint32_t num_rows = max_rows_per_pair(call.shape);
    rows::copy(call.expert_row(local_expert, row), call.row(call.rank, place / num_rows, place % num_rows),
               call.shape.hidden);
  });
}

}  // namespace all_to_all
