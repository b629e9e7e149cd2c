// Variants in packets, every thread for itself: oneshot and twoshot_packets.
#pragma once

#include "call.h"

namespace all_reduce {

// Takes packet i of every rank's slot in `slots` (each `stride` packets long): `visit(source, data)` in rank order, when all of
// a group of kAhead ranks have come. In place of the own rank's there is `own`; sources for which `has(source)` is false
// are left out. `arrived(source)` is called in the order of arrival. False after a timeout.
template <typename Data, typename Has, typename Arrived, typename Visit>
KPROF_DEVICE bool take_packets(const Call& call, const Exchange& exchange, uint32_t region, Packet* slots, uint32_t stride,
                               const Data& own, Has has, Arrived arrived, Visit visit) {
  for (uint32_t begin = 0; begin < call.num_ranks(); begin += kAhead) {
    const auto cell = [&](uint32_t k) { return slots + static_cast<uint64_t>(begin + k) * stride; };
    const auto is_wanted = [&](uint32_t k) {
      return begin + k < call.num_ranks() && begin + k != call.rank && has(begin + k);
    };
    Packet ahead[kAhead];
    uint32_t missing = 0;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) missing |= static_cast<uint32_t>(is_wanted(k)) << k;
    signals::Waited waited{region, call.rank, block_id()};
    const auto read = [&] {
      const uint32_t missing_before = missing;
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k)
        if ((missing >> k & 1u) != 0) ahead[k] = packets::peek(cell(k));
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k) {
        if ((missing >> k & 1u) == 0) continue;
        if (packets::is_complete(ahead[k])) missing &= ~(1u << k);
        waited.peer = begin + k;
      }
      KPROF_UNROLL(1)
      for (uint32_t k = 0; k < kAhead; ++k)
        if (((missing_before & ~missing) >> k & 1u) != 0) arrived(begin + k);
      return missing == 0 ? exchange.epoch() : 0u;
    };
    if (!signals::poll(read, exchange.epoch(), call.limits(), waited)) return false;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (begin + k == call.rank && has(begin + k)) visit(begin + k, own);
      if (!is_wanted(k)) continue;
      visit(begin + k, packets::data_of<Data>(ahead[k]));
      packets::empty(cell(k));
    }
  }
  return true;
}

// Of `num` things that are dealt thread by thread, how many this block handles.
KPROF_DEVICE uint32_t num_dealt_to_block(uint32_t num) {
  const uint32_t num_left = num % num_grid_threads();
  const uint32_t first = block_id() * num_threads();
  const uint32_t last_round = num_left < first ? 0 : num_left - first;
  return num / num_grid_threads() * num_threads() + (last_round < num_threads() ? last_round : num_threads());
}

template <typename Element>
KPROF_DEVICE void oneshot_exchange(const Call& call, kprof::Track& track) {
  using Data = packets::Data<Element>;
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, packets::kDataBytes>();
  const auto output = call.output_as<Element, packets::kDataBytes>();
  const uint32_t num_packets = input.num_vectors();
  if (block_id() * num_threads() >= num_packets) return;
  [[maybe_unused]] const uint32_t num_own_bytes = num_dealt_to_block(num_packets) * packets::kDataBytes;
  // A thread's first packet stays in registers: in a small tensor it is the only one.
  const uint32_t first = grid_thread();
  const Data first_data = packets::sendable(input.load(first));
  const auto data_at = [&](uint32_t i) { return i == first ? first_data : packets::sendable(input.load(i)); };
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    Packet* target = exchange.packets_of(peer) + static_cast<uint64_t>(call.rank) * num_packets;
    for (uint32_t i = first; i < num_packets; i += num_grid_threads()) packets::send(target + i, data_at(i));
    span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_own_bytes));
  }
  Packet* slots = exchange.packets_of(call.rank);
  for (uint32_t i = first; i < num_packets; i += num_grid_threads()) {
    Sum<Data> sum;
    const auto arrived = [&]([[maybe_unused]] uint32_t source) {
      if (i == first) {
        span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(source, block_id()));
      }
    };
    const bool is_complete = take_packets(
        call, exchange, R_WAIT, slots + i, num_packets, data_at(i), [](uint32_t) { return true; }, arrived,
        [&](uint32_t, const Data& data) { sum.add(data); });
    if (!is_complete) return;
    output.store(i, sum.rounded());
  }
  profile_stop(track, span, R_REDUCE, payload<R_REDUCE>(num_own_bytes));
}

template <typename Element>
__global__ void oneshot(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  oneshot_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

// Slice s of the tensor belongs to rank s. Slot s of the heap holds what rank s put of our slice; behind all slots, slot s
// holds the sums of rank s.
template <typename Element>
KPROF_DEVICE void twoshot_packets_exchange(const Call& call, kprof::Track& track) {
  using Data = packets::Data<Element>;
  kprof::Span span = profile_start(track);
  const Exchange exchange(call);
  const auto input = call.input_as<Element, packets::kDataBytes>();
  const auto output = call.output_as<Element, packets::kDataBytes>();
  const uint32_t num_packets = input.num_vectors();
  const uint32_t slice = slice_length(num_packets, call.num_ranks());
  const uint32_t first_of_block = block_id() * num_threads();
  if (first_of_block >= slice) return;
  [[maybe_unused]] const uint32_t num_own_bytes = num_dealt_to_block(slice) * packets::kDataBytes;
  const uint32_t first = grid_thread();
  const auto holds = [&](uint32_t owner, uint32_t i) { return owner * slice + i < num_packets; };
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    Packet* target = exchange.packets_of(peer) + call.rank * slice;
    for (uint32_t i = first; i < slice && holds(peer, i); i += num_grid_threads())
      packets::send(target + i, packets::sendable(input.load(peer * slice + i)));
    if (holds(peer, first_of_block)) {
      span = profile_lap(track, span, R_PUT, payload<R_PUT>(peer, block_id(), num_own_bytes));
    }
  }
  Packet* slots = exchange.packets_of(call.rank);
  for (uint32_t i = first; i < slice && holds(call.rank, i); i += num_grid_threads()) {
    const uint32_t place = call.rank * slice + i;
    Sum<Data> sum;
    const auto arrived = [&]([[maybe_unused]] uint32_t source) {
      if (i == first) {
        span = profile_lap(track, span, R_WAIT, payload<R_WAIT>(source, block_id()));
      }
    };
    const bool is_complete = take_packets(
        call, exchange, R_WAIT, slots + i, slice, packets::sendable(input.load(place)), [](uint32_t) { return true; },
        arrived, [&](uint32_t, const Data& data) { sum.add(data); });
    if (!is_complete) return;
    const Data result = packets::sendable(sum.rounded());
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance)
      packets::send(exchange.packets_of(call.rank_after(distance)) + call.num_ranks() * slice + place, result);
    output.store(place, result);
  }
  if (holds(call.rank, first_of_block)) {
    // The sums leave one by one as they are made: a send that began after the loop would begin after its wait had ended.
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
      profile_stop(track, span, R_BROADCAST,
                   payload<R_BROADCAST>(call.rank_after(distance), block_id(), num_own_bytes));
    }
    span = profile_lap(track, span, R_REDUCE, payload<R_REDUCE>(num_own_bytes));
  }
  for (uint32_t i = first; i < slice; i += num_grid_threads()) {
    const auto arrived = [&]([[maybe_unused]] uint32_t source) {
      if (i == first) {
        span = profile_lap(track, span, R_BROADCAST_WAIT, payload<R_BROADCAST_WAIT>(source, block_id()));
      }
    };
    const bool is_complete = take_packets(
        call, exchange, R_BROADCAST_WAIT, slots + call.num_ranks() * slice + i, slice, Data{},
        [&](uint32_t source) { return holds(source, i); }, arrived, [&](uint32_t source, const Data& data) {
          if (source != call.rank) output.store(source * slice + i, data);
        });
    if (!is_complete) return;
  }
  profile_stop(track, span, R_COPY_OUT, payload<R_COPY_OUT>(num_own_bytes * (call.num_ranks() - 1)));
}

template <typename Element>
__global__ void twoshot_packets(ProfiledCall call) {
  kprof::Track track = kprof::open_track(call, kprof::per_block);
  twoshot_packets_exchange<Element>(call, track);
  launch_counter::finish(call.counter());
}

}  // namespace all_reduce
