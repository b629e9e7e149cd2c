// Variants with packets, in which every thread works alone: oneshot and twoshot_packets. packet_spans.h has what they
// record.
#pragma once

#include <kprof/compute.h>

#include "call.h"
#include "packet_spans.h"

namespace all_reduce {

// Receives packet i of every rank's slot in `slots` (each `stride` packets long). Calls `visit(source, data)` in rank
// order, whenever a group of kAhead ranks is complete, and `done()` after the last. `own` takes the place of this
// rank's packet; sources without `has(source)` are skipped. False after a timeout.
template <typename Data, typename Has, typename Spans, typename Visit, typename Done>
KPROF_DEVICE bool take_packets(const ProfiledCall& call, const Exchange& exchange, uint32_t region, Packet* slots,
                               uint32_t stride, const Data& own, Spans& spans, Has has, Visit visit, Done done) {
  for (uint32_t begin = 0; begin < call.num_ranks(); begin += kAhead) {
    const auto cell = [&](uint32_t k) { return slots + static_cast<uint64_t>(begin + k) * stride; };
    const auto is_there = [&](uint32_t k) { return begin + k < call.num_ranks() && has(begin + k); };
    const auto is_wanted = [&](uint32_t k) { return is_there(k) && begin + k != call.rank; };
    Packet ahead[kAhead];
    uint32_t missing = 0;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) {
      ahead[k] = packets::packet_of(own);
      missing |= static_cast<uint32_t>(is_wanted(k)) << k;
    }
    signals::Waited waited{region, call.rank, block_id(), false};
    const auto look = [&] {
      [[maybe_unused]] const uint32_t missing_before = missing;
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k)
        if ((missing >> k & 1u) != 0) ahead[k] = packets::peek(cell(k));
      KPROF_UNROLL(kAhead)
      for (uint32_t k = 0; k < kAhead; ++k) {
        if ((missing >> k & 1u) == 0) continue;
        if (packets::is_complete(ahead[k])) missing &= ~(1u << k);
        waited.peer = begin + k;
      }
      spans.write_waits(begin, missing_before & ~missing);
      return missing == 0 ? exchange.epoch() : 0u;
    };
    if (!signals::poll(look, exchange.epoch(), call.limits(), waited)) return false;
    KPROF_UNROLL(kAhead)
    for (uint32_t k = 0; k < kAhead; ++k) {
      if (is_there(k)) visit(begin + k, packets::data_of<Data>(ahead[k]));
      if (is_wanted(k)) packets::empty(cell(k));
    }
    if (begin + kAhead >= call.num_ranks()) done();
  }
  return true;
}

template <typename Element>
KPROF_DEVICE void oneshot_exchange(const ProfiledCall& call) {
  using Data = packets::Data<Element>;
  let_next_launch_begin();
  const auto input = call.input_as<Element, packets::kDataBytes>();
  const auto output = call.output_as<Element, packets::kDataBytes>();
  const uint32_t num_packets = input.num_vectors();
  const bool has_work = block_id() * num_threads() < num_packets;
  const Moment asked = clock_now();
  const kprof::EarlyTrack early = ask_for_records(call, 1, has_work);
  await_launch_before();
  if (!has_work) return;
  const Moment begin = clock_now();
  // A thread's first packet stays in registers; in a small tensor it is the only one. Loaded before the epoch, because
  // NVIDIA's compiler waits for that at once.
  const uint32_t first = grid_thread();
  const Data first_data = input.load(first);
  const Exchange exchange(call);
  const auto data_at = [&](uint32_t i) { return packets::sendable(i == first ? first_data : input.load(i)); };
  for (uint32_t i = first; i < num_packets; i += num_grid_threads()) {
    const Data data = data_at(i);
    KPROF_UNROLL(1)
    for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
      Packet* target = exchange.packets_of(call.rank_after(distance)) + static_cast<uint64_t>(call.rank) * num_packets;
      packets::send(target + i, data);
    }
  }
  const Moment sent = clock_now();
  const kprof::ShortTrack track = open_records(call, 1, early);
  const auto everybody = [](uint32_t) { return true; };
  PhaseSpans<R_PUT, R_WAIT, R_REDUCE> spans(call, track, 0, sent);
  spans.write_sends(call, begin, num_bytes_of_block(num_packets), everybody);
  Packet* slots = exchange.packets_of(call.rank);
  for (uint32_t i = first; i < num_packets; i += num_grid_threads()) {
    Sum<Data> sum;
    spans.next_packet(i == first);
    const bool is_complete = take_packets(
        call, exchange, R_WAIT, slots + i, num_packets, data_at(i), spans, everybody,
        [&](uint32_t, const Data& data) { sum.add(data); }, [&] { output.store(i, sum.rounded()); });
    if (!is_complete) return;
  }
  const Moment made = spans.write_made(num_bytes_of_block(num_packets));
  close_records(call, track, 1, asked, made);
}

template <typename Element>
__global__ void oneshot(ProfiledCall call) {
  oneshot_exchange<Element>(call);
  launch_counter::finish(call.counter());
}

// Slice s of the tensor belongs to rank s. Slot s of the heap has rank s's part of our slice. After all these, slot s
// has the sums of rank s.
template <typename Element>
KPROF_DEVICE void twoshot_packets_exchange(const ProfiledCall& call) {
  using Data = packets::Data<Element>;
  let_next_launch_begin();
  const auto input = call.input_as<Element, packets::kDataBytes>();
  const auto output = call.output_as<Element, packets::kDataBytes>();
  const uint32_t num_packets = input.num_vectors();
  const uint32_t slice = slice_length(num_packets, call.num_ranks());
  const uint32_t first_of_block = block_id() * num_threads();
  const bool has_work = first_of_block < slice;
  const Moment asked = clock_now();
  const kprof::EarlyTrack early = ask_for_records(call, 2, has_work);
  await_launch_before();
  if (!has_work) return;
  const Moment begin = clock_now();
  const Exchange exchange(call);
  const uint32_t first = grid_thread();
  const auto holds = [&](uint32_t owner, uint32_t i) { return owner * slice + i < num_packets; };
  KPROF_UNROLL(1)
  for (uint32_t distance = 1; distance < call.num_ranks(); ++distance) {
    const uint32_t peer = call.rank_after(distance);
    Packet* target = exchange.packets_of(peer) + call.rank * slice;
    for (uint32_t i = first; i < slice && holds(peer, i); i += num_grid_threads())
      packets::send(target + i, packets::sendable(input.load(peer * slice + i)));
  }
  const Moment sent = clock_now();
  const kprof::ShortTrack track = open_records(call, 2, early);
  PhaseSpans<R_PUT, R_WAIT, R_REDUCE> sums(call, track, 0, sent);
  sums.write_sends(call, begin, num_bytes_of_block(slice), [&](uint32_t peer) { return holds(peer, first_of_block); });
  Packet* slots = exchange.packets_of(call.rank);
  for (uint32_t i = first; i < slice && holds(call.rank, i); i += num_grid_threads()) {
    const uint32_t place = call.rank * slice + i;
    Sum<Data> sum;
    sums.next_packet(i == first);
    const bool is_complete = take_packets(
        call, exchange, R_WAIT, slots + i, slice, packets::sendable(input.load(place)), sums,
        [](uint32_t) { return true; }, [&](uint32_t, const Data& data) { sum.add(data); },
        [&] {
          const Data result = packets::sendable(sum.rounded());
          KPROF_UNROLL(1)
          for (uint32_t distance = 1; distance < call.num_ranks(); ++distance)
            packets::send(exchange.packets_of(call.rank_after(distance)) + call.num_ranks() * slice + place, result);
          output.store(place, result);
        });
    if (!is_complete) return;
  }
  const Moment summed = clock_now();
  PhaseSpans<R_BROADCAST, R_BROADCAST_WAIT, R_COPY_OUT> results(call, track, 1, summed);
  if (holds(call.rank, first_of_block)) {
    sums.write_made(num_bytes_of_block(slice));
    // The sums left one by one as they were computed, so a send that began here would begin after its wait had ended.
    results.write_sends(call, sums.last_arrival(), num_bytes_of_block(slice), [](uint32_t) { return true; });
  }
  for (uint32_t i = first; i < slice; i += num_grid_threads()) {
    results.next_packet(i == first);
    const bool is_complete = take_packets(
        call, exchange, R_BROADCAST_WAIT, slots + call.num_ranks() * slice + i, slice, Data{}, results,
        [&](uint32_t source) { return holds(source, i); },
        [&](uint32_t source, const Data& data) {
          if (source != call.rank) output.store(source * slice + i, data);
        },
        [] {});
    if (!is_complete) return;
  }
  const Moment made = results.write_made(num_bytes_of_block(slice) * (call.num_ranks() - 1));
  close_records(call, track, 2, asked, made);
}

template <typename Element>
__global__ void twoshot_packets(ProfiledCall call) {
  twoshot_packets_exchange<Element>(call);
  launch_counter::finish(call.counter());
}

}  // namespace all_reduce
